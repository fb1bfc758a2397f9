"""The work of an op: multiply-adds, elementwise steps, and how well its shape fits the machine."""

from __future__ import annotations

import math

import onnx_ir as ir

from qdqtune.engines.simulated.profiles import Profile
from qdqtune.engines.simulated.wiring import Op, Wiring
from qdqtune.graph.op_classes import COPY_OPS, WEIGHTED_OPS

_CHEAP = {
    "Abs", "Add", "And", "Cast", "Ceil", "Clip", "Div", "Equal", "Floor", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less", "LessOrEqual", "Max", "Min",
    "Mul", "Neg", "Not", "Or", "PRelu", "Reciprocal", "Relu", "Round", "Sign", "Sqrt", "Sub",
    "ThresholdedRelu", "Where", "BatchNormalization",
}  # fmt: skip
_COSTLY = {
    "Cos", "Elu", "Erf", "Exp", "Gelu", "Log", "Mish", "Pow", "Selu", "Sigmoid", "Sin", "Softplus",
    "Softsign", "Swish", "Tan", "Tanh",
}  # fmt: skip
POINTWISE = frozenset(_CHEAP | _COSTLY)
"""Pointwise ops: each element depends only on elements at the same position."""
REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"}
)
RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
VIEWS = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops that are views of the same memory."""
MOVES = COPY_OPS | {"Dropout", "MaxPool", "Resize"}
"""Ops that move values unchanged: Q and DQ can be moved through them."""
# They access only what they return, not all of their input.
_PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})

# One or two polynomials per element.
_COSTLY_STEPS = 8.0
# A lookup in a table of 256 entries, for any function.
_TABLE_STEPS = 2.0
_STEPS = {"Softmax": 12.0, "LogSoftmax": 12.0, "LayerNormalization": 6.0, "RMSNormalization": 5.0}
_STEPS |= {"InstanceNormalization": 6.0, "GroupNormalization": 6.0, "Resize": 4.0}
_SMALL_ELEMENTS = 64
_BOOKKEEPING_TYPES = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


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
    if op.op_type not in WEIGHTED_OPS:
        return 0.0
    weight = wiring.shape(op.inputs[1])
    if op.op_type == "Conv":
        return wiring.size(op.outputs[0]) * float(math.prod(weight[1:]))
    if op.op_type == "ConvTranspose":
        return wiring.size(op.inputs[0]) * float(math.prod(weight[1:]))
    return wiring.size(op.outputs[0]) * float(_depth_of_product(wiring, op))


def ns_per_mac(wiring: Wiring, op: Op, dtype: ir.DataType, profile: Profile) -> float:
    """Return the mean nanoseconds per multiply-add of an op."""
    unit = profile.unit(dtype)
    inputs, outputs, depthwise = _channels(wiring, op)
    part = unit.depthwise if depthwise else _filled(inputs, unit.input_step)
    part *= _filled(outputs, 1 if depthwise else unit.output_step)
    if profile.half_full:
        results = wiring.size(op.outputs[0])
        part *= results / (results + profile.half_full)
    return 1.0 / (unit.rate * part)


def is_table(op: Op) -> bool:
    """Whether the low-precision kernel of an op is a table lookup."""
    return op.op_type in _COSTLY


def steps(wiring: Wiring, op: Op, *, low: bool) -> float:
    """Return the number of simple elementwise operations of an op, besides multiply-adds.

    Args:
        wiring: The graph.
        op: The op.
        low: Whether it computes in low precision.
    """
    out = max((wiring.size(tensor) for tensor in op.outputs), default=0)
    if op.op_type in WEIGHTED_OPS:
        return 0.0
    if op.op_type in _COSTLY:
        return out * (_TABLE_STEPS if low else _COSTLY_STEPS)
    if op.op_type in _STEPS:
        return out * _STEPS[op.op_type]
    if op.op_type in ("MaxPool", "AveragePool"):
        return out * float(_window(op))
    if op.op_type in POINTWISE or op.op_type in MOVES:
        return float(out)
    return float(max([out, *(wiring.size(t) for t in op.inputs if t not in wiring.constant)]))


def scatters(op: Op) -> bool:
    """Whether an op scatters rows, so that neighbours in memory are separated."""
    if op.op_type != "Transpose":
        return False
    for attribute in op.proto.attribute:
        if attribute.name == "perm":
            return bool(attribute.ints) and attribute.ints[-1] != len(attribute.ints) - 1
    return True


def touched_bytes(wiring: Wiring, op: Op, tensor: str, dtype: ir.DataType | None) -> float:
    """Return the number of bytes of a tensor that an op reads."""
    everything = wiring.nbytes(tensor, dtype)
    if op.op_type not in _PICKS or not wiring.size(tensor):
        return everything
    picked = sum(wiring.size(output) for output in op.outputs)
    return everything * min(1.0, picked / wiring.size(tensor))


def _channels(wiring: Wiring, op: Op) -> tuple[int, int, bool]:
    """Input and output channels of a group, and whether each group has one input channel."""
    weight = wiring.shape(op.inputs[1])
    groups = op.attribute("group", 1)
    if op.op_type == "Conv" and len(weight) > 1:
        return weight[1], weight[0] // groups, groups > 1 and weight[1] == 1
    if op.op_type == "ConvTranspose" and len(weight) > 1:
        return weight[0] // groups, weight[1], groups > 1 and weight[1] == 1
    if op.op_type in RECURRENT:
        return (weight[-1], weight[-2], False) if len(weight) > 1 else (1, 1, False)
    result = wiring.shape(op.outputs[0])
    return _depth_of_product(wiring, op), result[-1] if result else 1, False


def _depth_of_product(wiring: Wiring, op: Op) -> int:
    """Return the reduction length of a matrix product."""
    left = wiring.shape(op.inputs[0])
    if not left:
        return 1
    return left[0] if op.op_type == "Gemm" and op.attribute("transA", 0) else left[-1]


def _window(op: Op) -> int:
    for attribute in op.proto.attribute:
        if attribute.name == "kernel_shape":
            return math.prod(attribute.ints)
    return 1


def _filled(channels: int, step: int) -> float:
    """Return the share of the padded channels that is real."""
    padded = -(-channels // step) * step
    return channels / padded if channels > 0 else 1.0
