"""Shapes, types, producers and readers of each tensor of a model file.

Uses protos: this runs for every candidate of a search, and creating onnx_ir objects would take
longer than computing the costs.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.inliner
import onnx.shape_inference
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import helper

from qdqtune.graph._op_classes import COPY_OPS, MICROSOFT, QDQ_OPS, WEIGHTED_OPS
from qdqtune.qdq._dynamic_lstm import DYNAMIC_LSTM

Shapes = Mapping[str, Sequence[int]]
"""Input name to shape."""

# Constants used for shapes are smaller; values of larger ones are never used.
_LARGEST_READ_BYTES = 1024
_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# For the others, only type or shape matters, and both are known in advance.
_INPUTS_THAT_COUNT = {"CastLike": 1, "Shape": 0, "Size": 0}
_STANDARD_DOMAINS = ("", "ai.onnx")
_ITEM_BYTES = {int(t): t.bitwidth / 8 for t in ir.DataType if t.value and t.name != "STRING"}
_VALUE_FIELDS = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data")

_CHEAP = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Max", "Min",
    "Mul", "Neg", "Not", "Or", "PRelu", "Reciprocal", "Relu", "Round", "Sign", "Sqrt", "Sub",
    "ThresholdedRelu", "Where", "BatchNormalization",
}  # fmt: skip
TABLE_OPS = {
    "Cos", "Elu", "Erf", "Exp", "Gelu", "Log", "Mish", "Pow", "Selu", "Sigmoid", "Sin", "Softplus",
    "Softsign", "Swish", "Tan", "Tanh",
}  # fmt: skip
"""Expensive functions, which low-precision kernels look up in a table."""
INTEGER_PRODUCT = "MatMulInteger"
"""What a dynamic product multiplies with."""
DYNAMIC_LSTM_OP = f"{MICROSOFT}.{DYNAMIC_LSTM}"
AT_RUN_TIME = frozenset({INTEGER_PRODUCT, DYNAMIC_LSTM_OP})
"""Ops whose weights are integers, and that read what is quantized at run time."""
POINTWISE = frozenset(_CHEAP | TABLE_OPS)
"""Pointwise ops: each element depends only on elements at the same position."""
REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"}
)
CONVS = frozenset({"Conv", "ConvTranspose"})
RECURRENT = frozenset({"LSTM", "GRU", "RNN", DYNAMIC_LSTM_OP})
VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops that are views of the same memory."""
MOVES = COPY_OPS | {"Dropout", "MaxPool", "Resize"}
"""Ops that move values unchanged: Q and DQ can be moved through them."""
_SMALL_ELEMENTS = 64
_BOOKKEEPING_TYPES = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


@dataclass(frozen=True, eq=False)
class Op:
    """A node.

    Attributes:
        position: Its position in the file.
        name: Its name, or that of its first output.
        op_type: Its type, with the domain in front unless that is the standard one.
        inputs: Names, empty where an optional input is missing. Tensors that control-flow bodies
            read from the enclosing graph come last.
        outputs: Names, without missing ones.
        proto: The node.
    """

    position: int
    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: onnx.NodeProto

    @classmethod
    def of(cls, position: int, node: onnx.NodeProto) -> Op:
        """Reads a node."""
        around = sorted(_read_from_outside(node)) if node.op_type in _WITH_BODIES else ()
        outputs = tuple(name for name in node.output if name)
        op_type = node.op_type
        if node.domain not in _STANDARD_DOMAINS:
            op_type = f"{node.domain}.{op_type}"
        name = node.name or (outputs[0] if outputs else f"{op_type}_{position}")
        return cls(position, name, op_type, (*node.input, *around), outputs, node)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute."""
        for attribute in self.proto.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default


class Wiring:
    """The main graph of a model.

    Args:
        proto: The model; values of large constants are not needed.
        input_shapes: Shapes of inputs; dims that are neither here nor in the model are 1.

    Attributes:
        ops: The nodes in file order.
        producer: The producer of a tensor.
        outputs: Names of the graph's outputs.
        constant: Tensors whose values are known before the model runs.
        depth: Number of ops on the longest path to an op, without Q and DQ.

    Raises:
        ValueError: If an op reads a tensor that was not produced before it.
    """

    def __init__(self, proto: onnx.ModelProto, input_shapes: Shapes | None = None) -> None:
        graph, shapes = _with_shapes(proto, input_shapes or {})
        self.ops = tuple(Op.of(position, node) for position, node in enumerate(graph.node))
        self.outputs = frozenset(value.name for value in graph.output)
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.constant = set(self._initializers)
        self.producer: dict[str, Op] = {}
        self.depth: dict[Op, int] = {}
        self._readers: dict[str, list[tuple[Op, int]]] = {}
        self._dtypes = {tensor.name: tensor.data_type for tensor in graph.initializer}
        self._dtypes.update((v.name, v.type.tensor_type.elem_type) for v in _values(graph))
        self._shapes = {name: tuple(d or 1 for d in shape) for name, shape in shapes.items()}
        self._shapes.update((tensor.name, tuple(tensor.dims)) for tensor in graph.initializer)
        self._sizes = {name: math.prod(shape) for name, shape in self._shapes.items()}
        known = {value.name for value in graph.input} | self.constant
        for op in self.ops:
            self._add(op, known)

    def readers(self, tensor: str) -> list[tuple[Op, int]]:
        """Return the ops that read a tensor, with the input position."""
        return self._readers.get(tensor, [])

    def only_reader(self, tensor: str) -> Op | None:
        """Return the only op that reads a tensor; None if there are others."""
        readers = self.readers(tensor)
        return readers[0][0] if len(readers) == 1 and tensor not in self.outputs else None

    def readers_of(self, op: Op) -> Iterator[Op]:
        """Yield ops that read any result of an op."""
        for tensor in op.outputs:
            for reader, _ in self.readers(tensor):
                yield reader

    def leaves(self, op: Op) -> bool:
        """Whether a result of an op is an output of the graph, or unused."""
        return any(t in self.outputs or t not in self._readers for t in op.outputs)

    def dtype(self, tensor: str) -> ir.DataType:
        """Element type; float if unknown."""
        return ir.DataType(self._dtypes.get(tensor, 0) or 1)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Dimensions, with 1 for unknown ones; empty if the rank is unknown."""
        return self._shapes.get(tensor, ())

    def size(self, tensor: str) -> int:
        """Number of elements of a tensor."""
        return self._sizes.get(tensor, 1)

    def nbytes(self, tensor: str, dtype: ir.DataType | None = None) -> float:
        """Number of bytes of a tensor, in its own or another type."""
        kind = self._dtypes.get(tensor, 0) if dtype is None else int(dtype)
        return self.size(tensor) * _ITEM_BYTES.get(kind, 4.0)

    def value_of(self, tensor: str) -> str | bytes:
        """Return the bytes of a small constant; its name where the values are unknown."""
        proto = self._initializers.get(tensor)
        if proto is None or proto.data_location == onnx.TensorProto.EXTERNAL:
            return tensor
        plain = onnx.TensorProto()
        plain.CopyFrom(proto)
        plain.ClearField("name")
        content: bytes = plain.SerializeToString(deterministic=True)
        return content

    def _add(self, op: Op, known: set[str]) -> None:
        depth, constant = 0, True
        for position, tensor in enumerate(op.inputs):
            if not tensor:
                continue
            if tensor not in known:
                raise ValueError(f"{op.name} ({op.op_type}) reads {tensor!r}, which nobody made")
            self._readers.setdefault(tensor, []).append((op, position))
            if position < _INPUTS_THAT_COUNT.get(op.op_type, len(op.inputs)):
                constant = constant and tensor in self.constant
            if tensor in self.producer:
                depth = max(depth, self.depth[self.producer[tensor]])
        self.depth[op] = depth + (op.op_type not in QDQ_OPS)
        self.producer.update(dict.fromkeys(op.outputs, op))
        known.update(op.outputs)
        if constant:
            self.constant.update(op.outputs)


def is_free(wiring: Wiring, op: Op) -> bool:
    """Whether an op costs nothing: known in advance, a view, or shape arithmetic."""
    if op.op_type in VIEWS or all(tensor in wiring.constant for tensor in op.outputs):
        return True
    return all(
        wiring.dtype(tensor) in _BOOKKEEPING_TYPES and wiring.size(tensor) <= _SMALL_ELEMENTS
        for tensor in op.outputs
    )


def macs(wiring: Wiring, op: Op) -> float:
    """Return the number of multiply-adds of an op."""
    if op.op_type in RECURRENT:
        steps = math.prod(wiring.shape(op.inputs[0])[:2])
        return float(steps * sum(wiring.size(weight) for weight in op.inputs[1:3]))
    if op.op_type not in WEIGHTED_OPS and op.op_type != INTEGER_PRODUCT:
        return 0.0
    results = wiring.size(op.inputs[0] if op.op_type == "ConvTranspose" else op.outputs[0])
    if op.op_type in CONVS:
        return results * float(math.prod(wiring.shape(op.inputs[1])[1:]))
    return results * float(product_depth(wiring, op))


def product_depth(wiring: Wiring, op: Op) -> int:
    """Return the reduction length of a matrix product."""
    left = wiring.shape(op.inputs[0])
    if not left:
        return 1
    return left[0] if op.op_type == "Gemm" and op.attribute("transA", 0) else left[-1]


def read_proto(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Reads a model file without its weights: only the values of small constants are kept.

    Raises:
        OSError: If there is no such file.
        ValueError: If it is not a model.
    """
    try:
        proto = onnx.load(os.fspath(path), format="protobuf", load_external_data=False)
    except DecodeError as error:
        raise ValueError(f"{os.fspath(path)} is not an ONNX model: {error}") from error
    if not proto.graph.output:
        raise ValueError(f"{os.fspath(path)} is not an ONNX model: it has no outputs")
    constants = [node for node in proto.graph.node if node.op_type == "Constant"]
    tensors = [attribute.t for node in constants for attribute in node.attribute]
    for tensor in (*proto.graph.initializer, *tensors):
        item_bytes = _ITEM_BYTES.get(tensor.data_type, 1.0)
        if math.prod(tensor.dims) * item_bytes > _LARGEST_READ_BYTES:
            for field in _VALUE_FIELDS:
                tensor.ClearField(field)
    return proto


def digest(proto: onnx.ModelProto) -> bytes:
    """Return a hash of a model without its weights; the same in every process."""
    return hashlib.blake2b(proto.SerializeToString(deterministic=True), digest_size=16).digest()


def _with_shapes(
    proto: onnx.ModelProto, input_shapes: Shapes
) -> tuple[onnx.GraphProto, dict[str, tuple[int, ...]]]:
    """Infers the shapes of all tensors.

    Returns:
        The graph with its functions inlined, and the shapes by name: 0 for unknown dims, no entry
        if the rank is unknown.
    """
    model = onnx.ModelProto()
    model.CopyFrom(onnx.inliner.inline_local_functions(proto) if proto.functions else proto)
    for value in model.graph.input:
        given = input_shapes.get(value.name, ())
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis < len(given):
                dim.dim_value = given[axis]
            elif dim.dim_value <= 0:
                dim.dim_value = 1
    lstms = _as_standard(model.graph)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = _shapes(model.graph)
    unknown, before = _unknown(model.graph, shapes), math.inf
    while 0 < unknown < before:  # each time, the sizes behind those that are known then
        model = onnx.shape_inference.infer_shapes(_with_computed_sizes(model), data_prop=True)
        shapes = _shapes(model.graph)
        unknown, before = _unknown(model.graph, shapes), unknown
    for node in model.graph.node:
        if node.output[0] in lstms:
            node.CopyFrom(lstms[node.output[0]])
    return model.graph, shapes


def _as_standard(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Makes LSTMs of dynamic ones, whose shapes ONNX can't infer.

    Returns:
        What they were, by their first output.
    """
    found = {}
    for node in graph.node:
        if (node.domain, node.op_type) == (MICROSOFT, DYNAMIC_LSTM):
            found[node.output[0]] = onnx.NodeProto.FromString(node.SerializeToString())
            node.domain, node.op_type = "", "LSTM"
            del node.input[8:]
    return found


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    return {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in _values(graph)
        if value.type.tensor_type.HasField("shape")
    }


def _unknown(graph: onnx.GraphProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """How many results have a shape that is not known."""
    return sum(0 in shapes.get(name, (0,)) for node in graph.node for name in node.output if name)


def _values(graph: onnx.GraphProto) -> tuple[onnx.ValueInfoProto, ...]:
    return (*graph.input, *graph.value_info, *graph.output)


def _with_computed_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replaces ops that compute sizes, which ONNX's inference does not always follow."""
    from onnxscript import optimizer  # slow to import, and not needed for candidates

    from qdqtune.graph._fold_limits import FoldLimits

    folded = ir.from_proto(model)
    try:
        optimizer.fold_constants(folded, should_fold=FoldLimits.of(folded).allow)
        return ir.to_proto(folded)
    except Exception:  # anything that an op raises: its shapes stay unknown
        return model


def _read_from_outside(node: onnx.NodeProto) -> set[str]:
    """Return tensors that the bodies of a control-flow op read from the enclosing graph."""
    outside: set[str] = set()
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            inside = {value.name for value in (*graph.input, *graph.initializer)}
            read = {value.name for value in graph.output}
            for inner in graph.node:
                read.update(inner.input, _read_from_outside(inner))
                inside.update(inner.output)
            outside |= read - inside - {""}
    return outside
