"""Dynamic ops: products in integers whose input is quantized at run time, without calibration.

A dynamic op is written with standard ops that ONNX Runtime fuses into one kernel:

    x -> DynamicQuantizeLinear -> MatMulInteger(weight) -> Cast -> Mul(scale of x * scale of weight)

One DynamicQuantizeLinear serves all dynamic ops that read the same tensor. The last node has the
name and the output of the op that it stands for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx.helper import make_node

from qdqtune.graph._fingerprint import tensor_digest
from qdqtune.graph._index import FreeNames
from qdqtune.graph._op_classes import DYNAMIC_QUANTIZE, input_at, is_op
from qdqtune.graph._prepared_model import PreparedModel, constant_part, node_part
from qdqtune.graph._weights import values_of
from qdqtune.qdq._encoder import Encoder
from qdqtune.qdq._encoding import ReadEncoding, quantize
from qdqtune.qdq._op_units import why_not_dynamic
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge

INTEGER_PRODUCT = "MatMulInteger"
INTEGER_PRODUCTS = frozenset({INTEGER_PRODUCT, "ConvInteger"})
"""Ops that multiply integers and are no pair's; of the second we write none."""

#: Names the float weight of an integer product.
_MULTIPLIES = "multiplies by "
#: Marks the last node of a Gemm; the attributes that it had follow.
_GEMM = "from Gemm"
# The attributes that a dynamic Gemm can have, as they are written behind the mark.
_ATTRIBUTES = {
    "alpha": ir.AttrFloat32("alpha", 1.0),
    "beta": ir.AttrFloat32("beta", 1.0),
    "transA=0": ir.AttrInt64("transA", 0),
    "transB=0": ir.AttrInt64("transB", 0),
    "transB": ir.AttrInt64("transB", 1),
}
_SUFFIXES = (
    "_quantized", "_scale", "_zero_point", "_int32", "_cast", "_scales", "_product",
)  # fmt: skip
# What `quantize_dynamic` appends to the names of ops.
_FOREIGN_SUFFIX = "_quant"


class DynamicOps:
    """Writes dynamic ops of one model; what was serialized once is remembered.

    Args:
        base: The float model.
        encoder: Finds the encodings of weights.
        names: Generates names for new values.
    """

    def __init__(self, base: PreparedModel, encoder: Encoder, names: FreeNames) -> None:
        self._base = base
        self._encoder = encoder
        self._names = names
        self._prefixes: dict[str, str] = {}
        self._weights: dict[tuple[str, bool], tuple[list[str], bytes]] = {}

    def check(self, ops: Collection[str], edges: Iterable[Edge]) -> None:
        """Make sure that ops can be dynamic.

        Args:
            ops: Names of the ops.
            edges: What is quantized beside them.

        Raises:
            UsageError: If one can't, or is not of this model.
        """
        index, dialect = self._base.index, self._encoder.dialect
        for edge in edges if ops else ():
            if edge.node in ops and edge.position == 1:
                raise UsageError(
                    f"The placement quantizes {edge.tensor!r} for {edge.node!r}, which is dynamic: "
                    "its weight is quantized anyway.",
                    "Take one of both out of the placement.",
                )
        for name in sorted(ops):
            if name not in index.node:
                raise UsageError(
                    f"The placement names the node {name!r}, which the model doesn't have.",
                    "Is it a placement of another model?",
                )
            if reason := why_not_dynamic(index, dialect, index.node[name]):
                raise UsageError(
                    f"The node {name!r} can't be quantized dynamically: {reason}.",
                    "Take it out of the placement.",
                )

    def constants(self, name: str) -> bytes:
        """The initializers of a dynamic op, as parts of a graph."""
        return self._weight(name)[1]

    def key(self, name: str) -> tuple[str, bool]:
        """Equal for ops with the same initializers: the weight, and whether it is transposed."""
        node = self._base.index.node[name]
        weight = node.inputs[1]
        assert weight is not None
        return weight.name or "", bool(node.attributes.get_int("transB", 0))

    def nodes(self, name: str, proto: onnx.NodeProto, quantized: set[str]) -> bytes:
        """A dynamic op, as parts of a graph.

        Args:
            name: The op.
            proto: The op with the inputs and the output that it has in the candidate.
            quantized: Tensors that were quantized at run time before; this op's is added.
        """
        source, result = str(proto.input[0]), str(proto.output[0])
        parts = b""
        prefix = self._prefix(source)
        data = [f"{prefix}_quantized", f"{prefix}_scale", f"{prefix}_zero_point"]
        if source not in quantized:
            quantized.add(source)
            parts += node_part(
                make_node(DYNAMIC_QUANTIZE, [source], data, name=f"{prefix}_{DYNAMIC_QUANTIZE}")
            )
        weight, scale, *zero_point = self._weight(name)[0]
        own = self._prefix(result)
        bias = proto.input[2] if len(proto.input) > 2 else ""
        product = make_node(
            INTEGER_PRODUCT, [data[0], weight, data[2], *zero_point], [f"{own}_int32"],
            name=f"{name}_{INTEGER_PRODUCT}", doc_string=_MULTIPLIES + self.key(name)[0],
        )  # fmt: skip
        steps = [
            product,
            make_node("Cast", product.output, [f"{own}_cast"], name=f"{name}_Cast", to=1),
            make_node("Mul", [data[1], scale], [f"{own}_scales"], name=f"{name}_scales"),
        ]
        scaled = [f"{own}_cast", f"{own}_scales"]
        if bias:
            steps += [
                make_node("Mul", scaled, [f"{own}_product"], name=f"{name}_Mul"),
                make_node("Add", [f"{own}_product", bias], [result], name=name),
            ]
        else:
            steps.append(make_node("Mul", scaled, [result], name=name))
        if proto.op_type == "Gemm":
            steps[-1].doc_string = self._gemm(name)
        return parts + b"".join(map(node_part, steps))

    def _gemm(self, name: str) -> str:
        """What marks the last node of a Gemm."""
        own = self._base.index.node[name].attributes
        found = [
            label
            for label, attribute in _ATTRIBUTES.items()
            if attribute.name in own and own[attribute.name].value == attribute.value
        ]
        return ", ".join([_GEMM, *found])

    def _weight(self, name: str) -> tuple[list[str], bytes]:
        """Names of the weight, its scale and its zero point if it has one; all of them, written."""
        tensor, is_transposed = key = self.key(name)
        if key not in self._weights:
            encoding = self._encoder.dynamic_weight(name)
            constant = self._base.index.value[tensor].const_value
            assert constant is not None
            values = quantize(values_of(constant), encoding)
            prefix = self._prefix(f"{tensor}_transposed" if is_transposed else tensor)
            named = [
                (f"{prefix}_quantized", values.T if is_transposed else values, encoding.dtype),
                (f"{prefix}_scale", encoding.scale, ir.DataType.FLOAT),
            ]
            if encoding.zero_point.any():
                named.append((f"{prefix}_zero_point", encoding.zero_point, encoding.dtype))
            tensors = [
                self._base.store.reference((label, tensor_digest(each)), label, each)
                for label, array, kind in named
                for each in [ir.Tensor(np.ascontiguousarray(array), kind)]
            ]
            names = [label for label, _, _ in named]
            self._weights[key] = names, b"".join(map(constant_part, tensors))
        return self._weights[key]

    def _prefix(self, tensor: str) -> str:
        if tensor not in self._prefixes:
            self._prefixes[tensor] = self._names.prefix(f"{tensor}_dynamic", _SUFFIXES)
        return self._prefixes[tensor]


@dataclass(frozen=True)
class DynamicOp:
    """A dynamic op as found in a file, ours or another tool's.

    Attributes:
        name: The name of the float op.
        op_type: What it was: a MatMul, or a Gemm if the file says so.
        data: What it reads.
        weight: The stored weight.
        weight_name: The name of the float weight.
        encoding: How the weight is quantized.
        attributes: What a Gemm is told.
        bias: The bias of a Gemm.
        nodes: All nodes of it; the first may serve others as well, the last writes the result.
    """

    name: str
    op_type: str
    data: ir.Value
    weight: ir.Value
    weight_name: str
    encoding: ReadEncoding
    attributes: tuple[ir.Attr, ...]
    bias: ir.Value | None
    nodes: tuple[ir.Node, ...]

    @property
    def is_transposed(self) -> bool:
        """Whether the float weight is the transpose of the stored one."""
        return _ATTRIBUTES["transB"] in self.attributes


def find_dynamic_ops(graph: ir.Graph) -> Iterator[DynamicOp]:
    """Yield the dynamic ops of a graph, which may be changed in between."""
    for node in list(graph):
        if is_op(node, INTEGER_PRODUCT) and (found := _dynamic_op(node)) is not None:
            yield found


def _dynamic_op(product: ir.Node) -> DynamicOp | None:
    data, weight = input_at(product, 0), input_at(product, 1)
    quantizer = data.producer() if data is not None else None
    stored = ir.convenience.get_const_tensor(weight) if weight is not None else None
    if not is_op(quantizer, DYNAMIC_QUANTIZE) or stored is None or weight is None:
        return None
    assert quantizer is not None
    if len(quantizer.outputs) != 3:  # a file may lie
        return None
    _, scale, zero_point = quantizer.outputs
    source = input_at(quantizer, 0)
    if input_at(product, 2) is not zero_point or data is not quantizer.outputs[0]:
        return None
    cast = _only_reader(product.outputs[0], "Cast")
    scaled = _only_reader(cast.outputs[0], "Mul") if cast is not None else None
    if cast is None or scaled is None or source is None:
        return None
    scales = next((v.producer() for v in scaled.inputs if v not in (None, cast.outputs[0])), None)
    if not is_op(scales, "Mul") or scales is None or scale not in scales.inputs:
        return None
    factor = next((value for value in scales.inputs if value is not scale), None)
    encoding = _weight_encoding(stored, factor, input_at(product, 3))
    if encoding is None or scaled.graph is not product.graph:
        return None
    nodes: tuple[ir.Node, ...] = (quantizer, product, cast, scales, scaled)
    last = scaled
    marked = _only_reader(scaled.outputs[0], "Add")
    bias = None
    if marked is not None and _is_bias_of(marked, scaled.outputs[0]):
        last, nodes, bias = marked, (*nodes, marked), input_at(marked, 1)
    kind, *told = (last.doc_string or "").split(", ")
    label = product.doc_string or ""
    is_ours = label.startswith(_MULTIPLIES)
    name = (last if is_ours else product).name or ""
    return DynamicOp(
        name=name if is_ours else name.removesuffix(_FOREIGN_SUFFIX),
        op_type="Gemm" if kind == _GEMM else "MatMul",
        data=source,
        weight=weight,
        weight_name=label[len(_MULTIPLIES) :] if is_ours else _foreign_name(weight),
        encoding=encoding,
        attributes=tuple(
            _ATTRIBUTES[each] for each in told if kind == _GEMM and each in _ATTRIBUTES
        ),
        bias=bias,
        nodes=nodes,
    )


def _is_bias_of(add: ir.Node, product: ir.Value) -> bool:
    """Whether an Add is the last node of the Gemm whose product it reads, not of another one."""
    is_last = (add.doc_string or "").startswith(_GEMM) and input_at(add, 0) is product
    return is_last and add.graph is product.graph


def _only_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """The one node that reads a value, if it is of this type."""
    users = tuple(value.uses())
    if len(users) != 1 or value.is_graph_output():
        return None
    user, _ = users[0]
    return user if is_op(user, op_type) else None


def _weight_encoding(
    stored: ir.TensorProtocol, scale: ir.Value | None, zero_point: ir.Value | None
) -> ReadEncoding | None:
    factor = ir.convenience.get_const_tensor(scale) if scale is not None else None
    point = ir.convenience.get_const_tensor(zero_point) if zero_point is not None else None
    if factor is None or (zero_point is not None and point is None):
        return None
    columns = stored.shape.numpy()[-1] if len(stored.shape) else 0
    sizes = {1, columns}
    if factor.size not in sizes or (point is not None and point.size not in (1, factor.size)):
        return None
    shape = () if factor.size == 1 else (factor.size,)
    points = None
    if point is not None:
        points = np.broadcast_to(point.numpy().reshape(-1), (factor.size,)).reshape(shape)
    scales = factor.numpy().reshape(shape)
    return ReadEncoding(stored.dtype, scales, points, max(0, len(stored.shape) - 1))


def _foreign_name(weight: ir.Value) -> str:
    return (weight.name or "").removesuffix("_quantized")
