"""The kernels of a model on a simulated machine, and what they cost without noise."""

from __future__ import annotations

import os
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE, WEIGHTED_OPS
from qdqtune.testing.simulated._fusion import Fuser, Group, Storage
from qdqtune.testing.simulated._machine import DEFAULT_PROFILE, Profile, profile_named
from qdqtune.testing.simulated._ops import (
    MOVES,
    TABLE_OPS,
    LowPrecision,
    is_free,
    macs_us,
    scatters,
    steps,
    touched_bytes,
)
from qdqtune.testing.simulated._wiring import Op, Shapes, Wiring, read_proto

_REFORMAT = "Reformat"
_FLOAT_BYTES = 4.0


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
        if not low or group.lead.op_type in TABLE_OPS:
            return total
        total += self._wiring.size(group.ops[-1].outputs[0]) * self._profile.requantize_steps
        if group.lead.op_type not in WEIGHTED_OPS:
            total += sum(map(self._wiring.size, group.reads))
        return total

    def _moved_bytes(self, group: Group) -> float:
        members = set(group.ops)
        taken = self._storage.takes[group.lead]
        total = 0.0
        for tensor, op in group.reads.items():
            stored = self._low.available[tensor] if tensor in taken else None
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
            # Nothing is computed, so more narrow elements are handled at a time.
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
        """Dequantize the output of a DQ, or of an op that a DQ was moved behind."""
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
