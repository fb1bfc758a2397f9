"""Dynamic products, of standard ops that ONNX Runtime fuses into one kernel.

    x -> DynamicQuantizeLinear -> MatMulInteger(weight) -> Cast -> Mul(scale of x * scale of weight)

One DynamicQuantizeLinear serves all dynamic products that read the same tensor. The last node has
the name and the output of the op that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
from onnx.helper import make_node

from qdqtune.graph._op_classes import DYNAMIC_QUANTIZE, input_at, is_op
from qdqtune.qdq._dynamic_form import (
    Candidate,
    DynamicOp,
    StoredWeight,
    float_op_name,
    float_weight_name,
)
from qdqtune.qdq._encoding import Array, Encoding, ReadEncoding

INTEGER_PRODUCT = "MatMulInteger"

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


class DynamicProduct:
    """MatMul and Gemm."""

    op_types = frozenset({"Gemm", "MatMul"})
    opsets: Mapping[str, int] = {}

    def weights(self, node: ir.Node) -> Mapping[int, bool]:
        """The second operand, which a Gemm may read transposed."""
        return {1: bool(node.attributes.get_int("transB", 0))}

    def constants(
        self, values: Array, encoding: Encoding
    ) -> Iterator[tuple[str, Array, ir.DataType]]:
        """Yield values, scale, and zero point if it is not 0."""
        yield "_quantized", values, encoding.dtype
        yield "_scale", encoding.scale, ir.DataType.FLOAT
        if encoding.zero_point.any():
            yield "_zero_point", encoding.zero_point, encoding.dtype

    def nodes(
        self,
        node: ir.Node,
        proto: onnx.NodeProto,
        stored: Sequence[Sequence[str]],
        around: Candidate,
    ) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of a product; its input is quantized by the first that reads it."""
        name, source, result = proto.name, str(proto.input[0]), str(proto.output[0])
        prefix, own = around.prefix(source), around.prefix(result)
        data = [f"{prefix}_quantized", f"{prefix}_scale", f"{prefix}_zero_point"]
        if source not in around.quantized:
            around.quantized.add(source)
            yield make_node(DYNAMIC_QUANTIZE, [source], data, name=f"{prefix}_{DYNAMIC_QUANTIZE}")
        weight, scale, *zero_point = stored[0]
        float_weight = node.inputs[1]
        assert float_weight is not None
        bias = proto.input[2] if len(proto.input) > 2 else ""
        yield make_node(
            INTEGER_PRODUCT, [data[0], weight, data[2], *zero_point], [f"{own}_int32"],
            name=f"{name}_{INTEGER_PRODUCT}", doc_string=f"{_MULTIPLIES}{float_weight.name}",
        )  # fmt: skip
        yield make_node("Cast", [f"{own}_int32"], [f"{own}_cast"], name=f"{name}_Cast", to=1)
        yield make_node("Mul", [data[1], scale], [f"{own}_scales"], name=f"{name}_scales")
        scaled = [f"{own}_cast", f"{own}_scales"]
        if bias:
            yield make_node("Mul", scaled, [f"{own}_product"], name=f"{name}_Mul")
            last = make_node("Add", [f"{own}_product", bias], [result], name=name)
        else:
            last = make_node("Mul", scaled, [result], name=name)
        if node.op_type == "Gemm":
            last.doc_string = _mark(node)
        yield last

    def read(self, node: ir.Node) -> DynamicOp | None:
        """The product that an integer product belongs to."""
        return _read(node) if is_op(node, INTEGER_PRODUCT) else None


def _mark(gemm: ir.Node) -> str:
    """What marks the last node of a Gemm."""
    own = gemm.attributes
    found = [
        label
        for label, attribute in _ATTRIBUTES.items()
        if attribute.name in own and own[attribute.name].value == attribute.value
    ]
    return ", ".join([_GEMM, *found])


def _read(product: ir.Node) -> DynamicOp | None:
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
    bias: tuple[ir.Value | None, ...] = ()
    if marked is not None and _is_bias_of(marked, scaled.outputs[0]):
        last, nodes, bias = marked, (*nodes, marked), (input_at(marked, 1),)
    kind, *told = (last.doc_string or "").split(", ")
    attributes = tuple(_ATTRIBUTES[each] for each in told if kind == _GEMM and each in _ATTRIBUTES)
    is_turned = _ATTRIBUTES["transB"] in attributes
    label = product.doc_string or ""
    is_ours = label.startswith(_MULTIPLIES)
    named = label[len(_MULTIPLIES) :] if is_ours else float_weight_name(weight)
    kept = StoredWeight(
        weight, named, replace(encoding, axis=0) if is_turned else encoding, is_turned
    )
    return DynamicOp(
        name=(last.name or "") if is_ours else float_op_name(product),
        op_type="Gemm" if kind == _GEMM else "MatMul",
        inputs=(source, kept, *bias),
        attributes=attributes,
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
