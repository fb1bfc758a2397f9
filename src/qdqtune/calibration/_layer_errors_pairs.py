"""Pairs the tensors of a quantized model with those of its float model, and finds ops to compare.

Pairing is by name. Quantizers keep the names of op outputs, with exceptions: a quantized graph
output keeps its name behind the Q/DQ pair or a Cast, so that the op before it has a new one; a Conv
that has absorbed a BatchNormalization may have kept its own; and one whose Relu was replaced by the
saturation of a Q may have the Relu's.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._op_classes import (
    DEQUANTIZE,
    FLOAT_TYPES,
    QDQ_OPS,
    QUANTIZE,
    WEIGHTED_OPS,
    is_op,
)
from qdqtune.graph._op_likeness import fit
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._precision import convert_precision
from qdqtune.graph._shapes import infer_shapes, variables
from qdqtune.graph._validity import inline_functions
from qdqtune.qdq._dynamic import FORMS, find_dynamic_ops
from qdqtune.qdq._dynamic_form import DynamicOp
from qdqtune.records._precision import Precision

# Ops that optimizers fold into the weights and bias of a preceding op.
_TAKEN_IN = frozenset({"Add", "BatchNormalization", "Div", "Gemm", "MatMul", "Mul", "Sub"})
# Ops whose output shape depends on input values.
_OF_ANY_LENGTH = frozenset({"Compress", "If", "Loop", "NonMaxSuppression", "NonZero", "Unique"})
_AT_RUN_TIME = "uint8 at run time"
_REAL_TYPES = FLOAT_TYPES | {ir.DataType.DOUBLE}


@dataclass(frozen=True)
class QuantizedOp:
    """An op of the quantized model that reads something quantized.

    Attributes:
        name: The name of the op.
        op_type: What it is.
        tensor: Its output that the float model also has.
        inputs: The types of its quantized inputs.
    """

    name: str
    op_type: str
    tensor: str
    inputs: tuple[str, ...]


class Pairing:
    """A float model and its quantized form.

    Args:
        float_model: The float model; both models are made comparable in place.
        quantized: The quantized model.

    Attributes:
        original: The float model's index.
        quantized: The quantized model's index.
        float_of: The float model's tensor, by its name in the quantized model.
        constant: Tensors of the quantized model that don't depend on its inputs.
        ops: Its quantized ops, as far as they can be compared.
        unpaired: Quantized ops whose results the float model doesn't have.

    Raises:
        ModelError: If the older model's opset can't be raised to the other one's.
    """

    def __init__(self, float_model: ir.Model, quantized: ir.Model) -> None:
        opset = max(model.opset_imports.get("", 0) for model in (float_model, quantized))
        for model in (float_model, quantized):
            _make_comparable(model, opset)
        self.original = GraphIndex(float_model)
        self.quantized = GraphIndex(quantized)
        self._dynamic = {op.nodes[-1]: op for op in find_dynamic_ops(quantized.graph)}
        self.constant = self._constants()
        self.float_of: dict[str, str] = {}
        self._pair_names()
        self.ops: list[QuantizedOp] = []
        self.unpaired: list[ir.Node] = []
        self._find_ops()

    def is_taken_over(self, tensor: str) -> bool:
        """Whether an op evaluated alone reads the float model's tensor instead of this one."""
        return (
            tensor in self.float_of
            and tensor not in self.constant
            and not is_op(self.quantized.value[tensor].producer(), DEQUANTIZE)
        )

    def ops_of_fixed_shape(self) -> list[QuantizedOp]:
        """Return the ops whose results have the same shape in both models, whatever the values."""
        index = self.quantized
        loose: set[str] = set()
        for node in index.nodes:
            from_values = node.op_type in _OF_ANY_LENGTH and not self._is_constant(node)
            if from_values or not loose.isdisjoint(reads(node, index)):
                loose.update(value.name or "" for value in node.outputs)
        return [op for op in self.ops if op.tensor not in loose]

    def _constants(self) -> frozenset[str]:
        index = self.quantized
        found = {name for name, value in index.value.items() if value.const_value is not None}
        for node in index.nodes:
            if all(name in found for name in reads(node, index)):
                found.update(value.name or "" for value in node.outputs)
        return frozenset(found)

    def _is_constant(self, node: ir.Node) -> bool:
        return all(value.name in self.constant for value in node.outputs)

    def _pair_names(self) -> None:
        for name, value in self.quantized.value.items():
            node = value.producer()
            if node is None or node.op_type not in QDQ_OPS:
                self._pair(value, name)
        for node in self.quantized.nodes:
            source = _renamed(node)
            if source is not None and source.name not in self.float_of:
                self._pair(source, node.outputs[0].name or "")

    def _pair(self, value: ir.Value, name: str) -> None:
        """Record that a value has this name in the float model, if that is plausible."""
        other, node = self.original.value.get(name), value.producer()
        if other is None or other.is_initializer() or value.is_initializer():
            return
        if is_op(node, *WEIGHTED_OPS) or node in self._dynamic:
            other = self._folded_into(other) or _unsaturated(other) or other
        maker = other.producer()
        if (node is None) == (maker is None) and self._alike(node, maker) and fit(value, other):
            self.float_of[value.name or ""] = other.name or ""

    def _folded_into(self, value: ir.Value) -> ir.Value | None:
        """Return the result of a BatchNormalization that reads a float value and was folded."""
        readers = [user for user, _ in value.uses()]
        if len(readers) == 1 and is_op(readers[0], "BatchNormalization"):
            result = readers[0].outputs[0]
            if result.name not in self.quantized.value:
                return result
        return None

    def _find_ops(self) -> None:
        index = self.quantized
        types: dict[str, tuple[str, ...]] = {}
        inner = {node for op in self._dynamic.values() for node in op.nodes[:-1]}
        for node in index.nodes:
            if node in inner:
                continue
            dynamic = self._dynamic.get(node)
            found = tuple(word for name in reads(node, index) for word in types.get(name, ()))
            if dynamic is not None:
                found = (_AT_RUN_TIME, _dynamic_words(dynamic))
            outputs = [value.name for value in node.outputs if value.name]
            if is_op(node, DEQUANTIZE):
                types[outputs[0]] = (_encoding_words(node, index),)
                continue
            if node.op_type in QDQ_OPS or not found:
                continue
            types.update((name, found) for name in outputs if not self.is_taken_over(name))
            if self._is_constant(node):
                continue
            paired = [
                name for name in outputs if name in self.float_of and _is_real(index.value[name])
            ]
            if paired:
                name = node.name or "" if dynamic is None else dynamic.name
                op_type = node.op_type if dynamic is None else dynamic.op_type
                self.ops.append(QuantizedOp(name, op_type, paired[0], found))
            elif any(_is_real(index.value[name]) for name in outputs):
                self.unpaired.append(node)

    def _alike(self, one: ir.Node | None, other: ir.Node | None) -> bool:
        """Whether two nodes may compute the same: exporters that number tensors can reuse a name.

        A dynamic op stands for what it was, a Sum may stand for an Add, and the Add behind a
        dynamic op for the Gemm that both were.
        """
        if one is None or other is None or one.op_type == other.op_type:
            return True
        if one in self._dynamic:
            return is_op(other, *FORMS, *_TAKEN_IN)
        if is_op(one, "Sum"):
            return is_op(other, "Add")
        if is_op(one, "Add") and is_op(other, "Gemm"):
            return any(v is not None and v.producer() in self._dynamic for v in one.inputs)
        return is_op(one, *WEIGHTED_OPS) and is_op(other, *_TAKEN_IN)


def reads(node: ir.Node, index: GraphIndex) -> list[str]:
    """Return the tensors of the main graph that a node reads, including reads in its bodies."""
    return [*index.reads(node), *(value.name or "" for value in index.captured(node))]


def _make_comparable(model: ir.Model, opset: int) -> None:
    """Inline functions, raise the opset, infer types, and convert bfloat16 to float32, in place."""
    if model.functions:
        inline_functions(model)
    raise_opset(model, opset)
    name_nodes(model)
    for value in (value for op in find_dynamic_ops(model.graph) for value in op.nodes[-1].outputs):
        value.type = value.type or ir.TensorType(ir.DataType.FLOAT)  # ONNX doesn't know all of them
    if any(value.shape is None or value.type is None for value in variables(model.graphs())):
        infer_shapes(model)
    index = GraphIndex(model)
    if any(index.dtype(name) == ir.DataType.BFLOAT16 for name in index.value):
        convert_precision(model, Precision.FP32)
        infer_shapes(model)


def _renamed(node: ir.Node) -> ir.Value | None:
    """Return the value whose name a node may have taken: the input of a Q/DQ pair or a Cast."""
    if is_op(node, "Cast"):
        return node.inputs[0]
    value = node.inputs[0] if is_op(node, DEQUANTIZE) else None
    producer = value.producer() if value is not None else None
    return producer.inputs[0] if producer is not None and is_op(producer, QUANTIZE) else None


def _unsaturated(value: ir.Value) -> ir.Value | None:
    """Return the input of an activation that computes a value: a saturating Q can replace it."""
    producer = value.producer()
    return producer.inputs[0] if producer is not None and is_op(producer, "Clip", "Relu") else None


def _is_real(value: ir.Value) -> bool:
    return value.dtype in _REAL_TYPES


def _encoding_words(node: ir.Node, index: GraphIndex) -> str:
    """Return a DQ's type, and the granularity of its scale unless that is the whole tensor."""
    stored, scale = node.inputs[0], node.inputs[1]
    assert stored is not None
    assert scale is not None
    dtype = index.dtype(stored.name or "") or ir.DataType.UINT8
    word = dtype.name.lower()
    if node.attributes.get_int("block_size", 0):
        return f"{word} per block"
    sizes = index.shape(scale.name or "") or ()
    return f"{word} per channel" if any(size != 1 for size in sizes) else word


def _dynamic_words(op: DynamicOp) -> str:
    """Return the type of a dynamic op's weight, and the granularity of its scale."""
    encoding = op.weight.encoding
    word = (encoding.dtype or ir.DataType.INT8).name.lower()
    return f"{word} per channel" if encoding.scale.size > 1 else word
