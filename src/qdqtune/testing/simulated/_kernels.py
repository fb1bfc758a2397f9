"""The kernels of a model on a simulated machine, and their costs without noise."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from qdqtune.graph._op_classes import DEQUANTIZE, DYNAMIC_QUANTIZE, QUANTIZE, WEIGHTED_OPS
from qdqtune.testing.simulated._fusion import Fuser, Group, LowPrecision, Storage
from qdqtune.testing.simulated._machine import DEFAULT_PROFILE, Profile, profile_named
from qdqtune.testing.simulated._wiring import (
    AT_RUN_TIME,
    CONVS,
    DYNAMIC_LSTM_OP,
    INTEGER_PRODUCT,
    MOVES,
    POINTWISE,
    RECURRENT,
    REDUCTIONS,
    TABLE_OPS,
    Op,
    Shapes,
    Wiring,
    is_free,
    macs,
    product_depth,
    read_proto,
)

_REFORMAT = "Reformat"
_FLOAT_BYTES = 4.0
# These access only what they return, not all of their input.
_PICKS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "Split"})

# One or two polynomials per element.
_COSTLY_STEPS = 8.0
# A lookup in a table of 256 entries, for any function.
_TABLE_STEPS = 2.0
_STEPS = {"Softmax": 12.0, "LogSoftmax": 12.0, "LayerNormalization": 6.0, "RMSNormalization": 5.0}
_NORMALIZATIONS = REDUCTIONS | {"LayerNormalization"}
_STEPS |= {"InstanceNormalization": 6.0, "GroupNormalization": 6.0, "Resize": 4.0}


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        nodes: Names of the nodes that it computes, except Q and DQ that cost nothing.
        op_type: Type of the node that it is named after; `QuantizeLinear` and `DequantizeLinear`
            for conversions, `Reformat` for layout changes.
        precision: The type it computes in.
        compute_us: Microseconds of arithmetic.
        memory_us: Microseconds of memory access, overlapping with the arithmetic.
        launch_us: Microseconds of launch overhead.
    """

    nodes: tuple[str, ...]
    op_type: str
    precision: str
    compute_us: float
    memory_us: float
    launch_us: float

    @property
    def name(self) -> str:
        """The nodes, as one text."""
        return " + ".join(self.nodes)

    @property
    def ms(self) -> float:
        """Milliseconds that it takes."""
        return (max(self.compute_us, self.memory_us) + self.launch_us) / 1000.0


def plan_kernels(wiring: Wiring, profile: Profile) -> tuple[Kernel, ...]:
    """Return the kernels of a model in order of execution."""
    planner = _Planner(wiring, profile)
    return tuple(kernel for _, kernel in sorted(planner.placed, key=lambda placed: placed[0]))


class _Planner:
    def __init__(self, wiring: Wiring, profile: Profile) -> None:
        self._wiring = wiring
        self._profile = profile
        self._low = LowPrecision(wiring, profile)
        groups = Fuser(wiring, self._low, profile).groups
        self._storage = Storage(wiring, self._low, groups, profile)
        self.placed: list[tuple[int, Kernel]] = []
        for group in groups:
            self._add_group(group)
        for op in wiring.ops:
            if op.op_type == QUANTIZE:
                self._add_quantize(op)
            elif op.op_type == DEQUANTIZE and self._stays(op):
                self._add_dequantize(op, op.outputs[0])
            elif op.op_type in MOVES:
                self._add_move(op)

    def _stays(self, dequantize: Op) -> bool:
        """Whether a DQ remains as a pass: a reader needs floats, or no kernel knows its type."""
        tensor = dequantize.outputs[0]
        if tensor in self._wiring.constant:
            return False
        return tensor not in self._storage.quantized or self._storage.float_too(tensor)

    def _add_group(self, group: Group) -> None:
        lead, profile = group.lead, self._profile
        dtype = self._low.kernels.get(lead)
        launch_us = profile.launch_us + (profile.low_launch_us if dtype is not None else 0.0)
        if dtype is None:
            dtype = self._wiring.dtype(lead.inputs[0] if lead.inputs else "")
        kernel = Kernel(
            tuple(op.name for op in group.ops),
            lead.op_type,
            _shown(dtype),
            macs_us(self._wiring, lead, dtype, profile)
            + _us(self._steps(group), profile.element_rate),
            _us(self._moved_bytes(group), profile.bandwidth),
            launch_us,
        )
        self.placed.append((group.ops[-1].position, kernel))
        if not profile.fuses:
            self._add_dequantized(group.ops[-1])

    def _steps(self, group: Group) -> float:
        """Return the number of simple elementwise operations in a kernel."""
        low = group.lead in self._low.kernels
        total = sum(steps(self._wiring, op, low=low) for op in group.ops)
        if group.lead.op_type in (DYNAMIC_QUANTIZE, DYNAMIC_LSTM_OP):
            total += self._wiring.size(group.lead.inputs[0]) * self._profile.dynamic_steps
        elif self._is_fused_with_sum(group):
            total += self._wiring.size(group.ops[-1].outputs[0]) * self._profile.fused_norm_steps
        if not low or group.lead.op_type in TABLE_OPS:
            return total
        total += self._wiring.size(group.ops[-1].outputs[0]) * self._profile.requantize_steps
        if group.lead.op_type not in WEIGHTED_OPS:
            total += sum(map(self._wiring.size, group.reads))
        return total

    def _is_fused_with_sum(self, group: Group) -> bool:
        """Whether a kernel is a layer normalization of a sum that is computed in floats."""
        if not any(op.op_type in _NORMALIZATIONS for op in group.ops):
            return False
        makers = (self._wiring.producer.get(tensor) for tensor in group.reads)
        sums = [op for op in (*makers, *group.ops) if op is not None and op.op_type == "Add"]
        return any(
            op not in self._low.kernels and self._wiring.constant.isdisjoint(op.inputs)
            for op in sums
        )

    def _moved_bytes(self, group: Group) -> float:
        members = set(group.ops)
        taken = self._storage.takes[group.lead]
        total = 0.0
        # Without kernels for it, a machine converts the operands of an integer product first.
        is_converted = group.lead.op_type in AT_RUN_TIME and not self._profile.dynamic
        for tensor, op in group.reads.items():
            stored = self._low.available[tensor] if tensor in taken else None
            stored = ir.DataType.FLOAT if is_converted else stored
            total += touched_bytes(self._wiring, op, tensor, stored)
        for op in group.ops:
            for tensor in op.outputs:
                readers = (reader for reader, _ in self._wiring.readers(tensor))
                if tensor in self._wiring.outputs or not members.issuperset(readers):
                    total += self._wiring.nbytes(tensor, self._stored_type(tensor))
        return total

    def _stored_type(self, tensor: str) -> ir.DataType | None:
        """Return the type in which a tensor is stored; None for its own."""
        if tensor not in self._storage.quantized:
            return None
        return self._low.available.get(tensor) or self._low.wanted[tensor].dtype

    def _add_move(self, op: Op) -> None:
        profile, wiring = self._profile, self._wiring
        if not is_free(wiring, op):
            stored = self._stored_type(op.outputs[0])
            written = sum(wiring.nbytes(tensor, stored) for tensor in op.outputs)
            read = touched_bytes(wiring, op, op.inputs[0], stored)
            speed = profile.reformat_bandwidth if scatters(op) else profile.bandwidth
            # Nothing is computed, so more narrow elements are processed at a time.
            width = written / _FLOAT_BYTES / max(1, sum(map(wiring.size, op.outputs)))
            compute_us = _us(steps(wiring, op, low=False) * width, profile.element_rate)
            dtype = stored or wiring.dtype(op.inputs[0])
            self._add_pass(op, op.op_type, dtype, _us(read + written, speed), compute_us)
        self._add_dequantized(op)

    def _add_dequantized(self, op: Op) -> None:
        """Dequantize the quantized results of an op that are also needed as floats."""
        for tensor in op.outputs:
            if tensor in self._storage.quantized and self._storage.float_too(tensor):
                self._add_dequantize(op, tensor)

    def _add_quantize(self, op: Op) -> None:
        result = op.outputs[0]
        if result in self._wiring.constant or self._storage.absorbed(op):
            return
        dtype = self._wiring.dtype(result)
        self._add_conversion(op, QUANTIZE, op.inputs[0], dtype)
        if self._storage.reformats_before(op):
            self._add_reformat(op, result, dtype)

    def _add_dequantize(self, op: Op, tensor: str) -> None:
        """Dequantize the output of a DQ, or of an op past which a DQ was moved."""
        dtype = self._stored_type(tensor) or self._wiring.dtype(op.inputs[0])
        if self._storage.reformats_after(tensor):
            self._add_reformat(op, tensor, dtype)
        self._add_conversion(op, DEQUANTIZE, tensor, dtype)

    def _add_conversion(self, op: Op, kind: str, tensor: str, dtype: ir.DataType) -> None:
        moved = self._wiring.nbytes(tensor) + self._wiring.nbytes(tensor, dtype)
        self._add_pass(op, kind, dtype, _us(moved, self._profile.conversion_bandwidth))

    def _add_reformat(self, op: Op, tensor: str, dtype: ir.DataType) -> None:
        moved = 2.0 * self._wiring.nbytes(tensor, dtype)
        self._add_pass(op, _REFORMAT, dtype, _us(moved, self._profile.reformat_bandwidth))

    def _add_pass(
        self, op: Op, kind: str, dtype: ir.DataType, memory_us: float, compute_us: float = 0.0
    ) -> None:
        launch_us = self._profile.launch_us
        kernel = Kernel((op.name,), kind, _shown(dtype), compute_us, memory_us, launch_us)
        self.placed.append((op.position, kernel))


def macs_us(wiring: Wiring, op: Op, dtype: ir.DataType, profile: Profile) -> float:
    """Return the microseconds that the multiply-adds of an op take."""
    count = macs(wiring, op)
    if not count:
        return 0.0
    speed = 1.0
    if op.op_type in AT_RUN_TIME:
        dtype, speed = ir.DataType.FLOAT, 1.0
        if profile.dynamic:
            dtype, speed = ir.DataType.UINT8, profile.dynamic
    unit = profile.units.get(dtype, profile.units[ir.DataType.FLOAT])
    inputs, outputs, depthwise = _channels(wiring, op)
    part = unit.depthwise if depthwise else _filled(inputs, unit.input_step)
    part *= _filled(outputs, 1 if depthwise else unit.output_step)
    if profile.half_full:
        results = wiring.size(op.outputs[0])
        part *= results / (results + profile.half_full)
    return count * (1.0 / (unit.rate * speed * part)) / 1000.0


def steps(wiring: Wiring, op: Op, *, low: bool) -> float:
    """Return the number of simple elementwise operations of an op, besides multiply-adds.

    Args:
        wiring: The graph.
        op: The op.
        low: Whether it computes in low precision.
    """
    out = max((wiring.size(tensor) for tensor in op.outputs), default=0)
    if op.op_type in WEIGHTED_OPS or op.op_type == INTEGER_PRODUCT:
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
    """Whether an op scatters rows, which separates neighbours in memory."""
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
    """Return input and output channels of a group, and whether groups have one input channel."""
    weight = wiring.shape(op.inputs[1])
    if op.op_type in RECURRENT:
        inputs, outputs = weight[:-3:-1] if len(weight) > 1 else (1, 1)
        is_turned = op.op_type == DYNAMIC_LSTM_OP
        return (outputs, inputs, False) if is_turned else (inputs, outputs, False)
    if op.op_type in CONVS and len(weight) > 1:
        groups = op.attribute("group", 1)
        inputs, outputs = weight[1], weight[0] // groups
        if op.op_type == "ConvTranspose":
            inputs, outputs = outputs, inputs
        return inputs, outputs, groups > 1 and weight[1] == 1
    result = wiring.shape(op.outputs[0])
    return product_depth(wiring, op), result[-1] if result else 1, False


def _filled(channels: int, step: int) -> float:
    """Return the share of the padded channels that contains data."""
    padded = -(-channels // step) * step
    return channels / padded if channels > 0 else 1.0


def _us(amount: float, billions_per_s: float) -> float:
    return amount / billions_per_s / 1000.0


def _shown(dtype: ir.DataType) -> str:
    return dtype.name.lower()


def kernels_of(
    model: str | os.PathLike[str] | onnx.ModelProto,
    profile: str | Profile = DEFAULT_PROFILE,
    input_shapes: Shapes | None = None,
) -> tuple[Kernel, ...]:
    """Return the kernels of a model, in order of execution.

    Args:
        model: A file or a proto; the values of its weights are not used.
        profile: The machine, or its name.
        input_shapes: Shapes of inputs whose dims the model leaves open; open dims are 1.

    Raises:
        ValueError: If there is no such profile, or the model's graph is broken.
    """
    proto = model if isinstance(model, onnx.ModelProto) else read_proto(model)
    machine = profile if isinstance(profile, Profile) else profile_named(profile)
    return plan_kernels(Wiring(proto, input_shapes), machine)


def true_latency_ms(
    model: str | os.PathLike[str] | onnx.ModelProto,
    profile: str | Profile = DEFAULT_PROFILE,
    input_shapes: Shapes | None = None,
) -> float:
    """Return the latency around which the simulated samples scatter; see `kernels_of`."""
    return total_ms(kernels_of(model, profile, input_shapes))


def total_ms(kernels: tuple[Kernel, ...]) -> float:
    """Return the total time of all kernels."""
    return sum(kernel.ms for kernel in kernels)
