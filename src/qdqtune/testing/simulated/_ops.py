"""The work of an op, and whether it computes in low precision."""

from __future__ import annotations

import math
from typing import NamedTuple

import onnx_ir as ir

from qdqtune.graph._op_classes import COPY_OPS, DEQUANTIZE, FLOAT_TYPES, QUANTIZE, WEIGHTED_OPS
from qdqtune.qdq._dialect import OpRule, Output
from qdqtune.qdq.dialects import dialect_named
from qdqtune.testing.simulated._machine import Profile
from qdqtune.testing.simulated._wiring import Op, Wiring

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
"""Costly functions, which low-precision kernels look up in a table."""
POINTWISE = frozenset(_CHEAP | TABLE_OPS)
"""Pointwise ops: each element depends only on elements at the same position."""
REDUCTIONS = frozenset(
    {"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"}
)
CONVS = frozenset({"Conv", "ConvTranspose"})
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
    results = wiring.size(op.inputs[0] if op.op_type == "ConvTranspose" else op.outputs[0])
    if op.op_type in CONVS:
        return results * float(math.prod(wiring.shape(op.inputs[1])[1:]))
    return results * float(_depth_of_product(wiring, op))


def macs_us(wiring: Wiring, op: Op, dtype: ir.DataType, profile: Profile) -> float:
    """Return the microseconds that the multiply-adds of an op take."""
    count = macs(wiring, op)
    if not count:
        return 0.0
    unit = profile.units.get(dtype, profile.units[ir.DataType.FLOAT])
    inputs, outputs, depthwise = _channels(wiring, op)
    part = unit.depthwise if depthwise else _filled(inputs, unit.input_step)
    part *= _filled(outputs, 1 if depthwise else unit.output_step)
    if profile.half_full:
        results = wiring.size(op.outputs[0])
        part *= results / (results + profile.half_full)
    return count * (1.0 / (unit.rate * part)) / 1000.0


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
    if op.op_type in TABLE_OPS:
        return out * (_TABLE_STEPS if low else _COSTLY_STEPS)
    if op.op_type in _STEPS:
        return out * _STEPS[op.op_type]
    if op.op_type in ("MaxPool", "AveragePool"):
        return out * float(math.prod(op.attribute("kernel_shape", ())))
    if op.op_type in POINTWISE or op.op_type in MOVES:
        return float(out)
    return float(max([out, *(wiring.size(t) for t in op.inputs if t not in wiring.constant)]))


def scatters(op: Op) -> bool:
    """Whether an op scatters rows, so that neighbours in memory are separated."""
    if op.op_type != "Transpose":
        return False
    perm = op.attribute("perm")
    return perm is None or (bool(perm) and perm[-1] != len(perm) - 1)


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
    if op.op_type in RECURRENT:
        return (weight[-1], weight[-2], False) if len(weight) > 1 else (1, 1, False)
    if op.op_type in CONVS and len(weight) > 1:
        groups = op.attribute("group", 1)
        inputs, outputs = weight[1], weight[0] // groups
        if op.op_type == "ConvTranspose":
            inputs, outputs = outputs, inputs
        return inputs, outputs, groups > 1 and weight[1] == 1
    result = wiring.shape(op.outputs[0])
    return _depth_of_product(wiring, op), result[-1] if result else 1, False


def _depth_of_product(wiring: Wiring, op: Op) -> int:
    """Return the reduction length of a matrix product."""
    left = wiring.shape(op.inputs[0])
    if not left:
        return 1
    return left[0] if op.op_type == "Gemm" and op.attribute("transA", 0) else left[-1]


def _filled(channels: int, step: int) -> float:
    """Return the share of the padded channels that is real."""
    padded = -(-channels // step) * step
    return channels / padded if channels > 0 else 1.0


class Form(NamedTuple):
    """How a tensor is stored when it is quantized.

    Attributes:
        dtype: The type.
        scale: Values, or else names, of scale and zero point.
    """

    dtype: ir.DataType
    scale: tuple[str | bytes, ...]


class LowPrecision:
    """The low-precision kernels of a graph.

    An op has one if its inputs come from DQ and, where its dialect's rule requires it, all readers
    of its result are Q. Passthrough ops in between don't matter: Q can be moved up through them, DQ
    down.

    Args:
        wiring: The graph.
        profile: The machine.

    Attributes:
        available: Tensors available in quantized form, with the type: results of DQ, also moved.
        wanted: Tensors read only by Q of one form, also moved; with that form.
        kernels: Ops that compute in low precision, with the type of their activations.
    """

    def __init__(self, wiring: Wiring, profile: Profile) -> None:
        self._wiring = wiring
        self._profile = profile
        self._dialect = dialect_named(profile.dialect)
        self.available: dict[str, ir.DataType] = {}
        self.wanted: dict[str, Form] = {}
        self._find_available()
        self._find_wanted()
        self.kernels: dict[Op, ir.DataType] = {}
        for op in wiring.ops:
            if (dtype := self._kernel_type(op)) is not None:
                self.kernels[op] = dtype
        if not profile.fuses:  # what low-precision kernels make is quantized, whoever reads it
            self.available.update((self._result(op), dtype) for op, dtype in self.kernels.items())

    def has_kernel(self, op: Op) -> bool:
        """Whether such ops have a low-precision kernel that computes something."""
        return op.op_type in self._dialect.rules and op.op_type not in MOVES

    def fused_activation(self, op: Op) -> Op | None:
        """Return the activation that is fused into a low-precision kernel."""
        reader = self._wiring.only_reader(op.outputs[0]) if len(op.outputs) == 1 else None
        if reader is None or reader.op_type not in self._dialect.fused_activations:
            return None
        return reader

    def reads_quantized(self, op: Op, position: int) -> bool:
        """Whether a low-precision kernel reads this input in its stored form."""
        if op not in self.kernels or op.inputs[position] not in self.available:
            return False
        rule = self._dialect.rules[op.op_type]
        return rule.inputs is None or position in rule.inputs

    def _find_available(self) -> None:
        for op in self._wiring.ops:
            source = op.inputs[0] if op.inputs else ""
            dtype = self.available.get(source) if op.op_type in MOVES else None
            if op.op_type == DEQUANTIZE and source:
                stored = self._wiring.dtype(source)
                if stored not in FLOAT_TYPES and stored in self._profile.units:
                    dtype = stored
            if dtype is not None:
                self.available.update(dict.fromkeys(op.outputs, dtype))

    def _find_wanted(self) -> None:
        for op in reversed(self._wiring.ops):
            for tensor in op.outputs:
                forms = {self._wanted_form(*reader) for reader in self._wiring.readers(tensor)}
                form = forms.pop() if len(forms) == 1 else None
                if form is not None and tensor not in self._wiring.outputs:
                    self.wanted[tensor] = form

    def _wanted_form(self, op: Op, position: int) -> Form | None:
        """Return the form in which a reader would read a tensor, if it is not float."""
        if position != 0:
            return None
        if op.op_type == QUANTIZE:
            dtype = self._wiring.dtype(op.outputs[0])
            scale = tuple(map(self._wiring.value_of, op.inputs[1:]))
            return Form(dtype, scale) if dtype in self._profile.units else None
        if op.op_type in MOVES:
            forms = {self.wanted.get(tensor) for tensor in op.outputs}
            return forms.pop() if len(forms) == 1 else None
        return None

    def _kernel_type(self, op: Op) -> ir.DataType | None:
        rule = self._dialect.rules.get(op.op_type)
        if rule is None or not self.has_kernel(op) or is_free(self._wiring, op):
            return None
        positions = range(len(op.inputs)) if rule.inputs is None else rule.inputs
        if any(p >= len(op.inputs) for p in positions):
            return None
        types = [self._operand_type(op.inputs[p], rule) for p in positions]
        dtype = types[0]
        if dtype is None or None in types or not self._exists(op, rule, dtype):
            return None
        if rule.output is Output.REQUIRED and self._result(op) not in self.wanted:
            return None
        return dtype

    def _operand_type(self, tensor: str, rule: OpRule) -> ir.DataType | None:
        """Return the type in which a kernel can read an operand, if it is not float."""
        if tensor in self.available or self._profile.fuses or not rule.joins_producer:
            return self.available.get(tensor)
        maker = self._wiring.producer.get(tensor)
        alone = self._wiring.only_reader(tensor) is not None
        return self.kernels.get(maker) if maker is not None and alone else None

    def _exists(self, op: Op, rule: OpRule, dtype: ir.DataType) -> bool:
        if self._wiring.size(op.inputs[0]) < rule.least_elements:
            return False
        formats = self._dialect.formats.values()
        most_taps = [f.most_taps for f in formats if f.activation.dtype == dtype and f.most_taps]
        if op.op_type != "Conv" or not most_taps:
            return True
        return math.prod(self._wiring.shape(op.inputs[1])[2:]) <= max(most_taps)

    def _result(self, op: Op) -> str:
        return (self.fused_activation(op) or op).outputs[0]
