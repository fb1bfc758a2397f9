"""The kernels of a model on a simulated machine, with their costs.

The noise-free latency of the model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE, WEIGHTED_OPS
from qdqtune.testing.simulated._fusion import Group, Storage, group_ops
from qdqtune.testing.simulated._machine import DEFAULT_PROFILE, Profile, profile_named
from qdqtune.testing.simulated._ops import (
    MOVES,
    LowPrecision,
    is_free,
    is_table,
    macs,
    ns_per_mac,
    scatters,
    steps,
    touched_bytes,
)
from qdqtune.testing.simulated._wiring import Op, Shapes, Wiring, read_proto

REFORMAT = "Reformat"
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
    return _Planner(wiring, profile).plan()


class _Planner:
    def __init__(self, wiring: Wiring, profile: Profile) -> None:
        self._wiring = wiring
        self._profile = profile
        self._low = LowPrecision(wiring, profile)
        self._groups = group_ops(wiring, self._low, profile)
        self._storage = Storage(wiring, self._low, self._groups, profile)
        self._placed: list[tuple[int, Kernel]] = []

    def plan(self) -> tuple[Kernel, ...]:
        for group in self._groups:
            self._add_group(group)
        for op in self._wiring.ops:
            if op.op_type == QUANTIZE:
                self._add_quantize(op)
            elif op.op_type == DEQUANTIZE and self._stays(op):
                self._add_dequantize(op, op.outputs[0])
            elif op.op_type in MOVES:
                self._add_move(op)
        self._placed.sort(key=lambda placed: placed[0])
        return tuple(kernel for _, kernel in self._placed)

    def _stays(self, dequantize: Op) -> bool:
        """Whether a DQ remains as a pass: a reader needs floats, or no kernel knows its type."""
        tensor = dequantize.outputs[0]
        if tensor in self._wiring.constant:
            return False
        return not self._storage.is_quantized(tensor) or self._storage.float_too(tensor)

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
            self._macs_us(lead, dtype) + _us(self._steps(group), profile.element_rate),
            _us(self._moved_bytes(group), profile.bandwidth),
            launch_us,
        )
        self._placed.append((group.ops[-1].position, kernel))
        if not profile.fuses:
            self._add_dequantized(group.ops[-1])

    def _macs_us(self, op: Op, dtype: ir.DataType) -> float:
        count = macs(self._wiring, op)
        return count * ns_per_mac(self._wiring, op, dtype, self._profile) / 1000.0 if count else 0.0

    def _steps(self, group: Group) -> float:
        """Return the number of simple elementwise operations in a kernel."""
        low = group.lead in self._low.kernels
        total = sum(steps(self._wiring, op, low=low) for op in group.ops)
        if not low or is_table(group.lead):
            return total
        written = self._wiring.size(group.ops[-1].outputs[0])
        total += written * self._profile.requantize_steps
        if group.lead.op_type not in WEIGHTED_OPS:
            total += sum(self._wiring.size(t) for t in self._storage.reads(group))
        return total

    def _moved_bytes(self, group: Group) -> float:
        members = set(group.ops)
        total = 0.0
        for tensor, op in self._storage.reads(group).items():
            taken = self._storage.takes(group, tensor)
            stored = self._low.available[tensor] if taken else None
            total += touched_bytes(self._wiring, op, tensor, stored)
        for op in group.ops:
            for tensor in op.outputs:
                readers = (reader for reader, _ in self._wiring.readers(tensor))
                if tensor in self._wiring.outputs or not members.issuperset(readers):
                    total += self._wiring.nbytes(tensor, self._stored_type(tensor))
        return total

    def _stored_type(self, tensor: str) -> ir.DataType | None:
        """Return the type in which a tensor is stored; None for its own."""
        if not self._storage.is_quantized(tensor):
            return None
        return self._low.available.get(tensor) or self._low.wanted[tensor].dtype

    def _add_move(self, op: Op) -> None:
        profile, wiring = self._profile, self._wiring
        if not is_free(wiring, op):
            dtype = self._stored_type(op.outputs[0])
            written = sum(wiring.nbytes(tensor, dtype) for tensor in op.outputs)
            read = touched_bytes(wiring, op, op.inputs[0], dtype)
            speed = profile.reformat_bandwidth if scatters(op) else profile.bandwidth
            # Nothing is computed, so more narrow elements are handled at a time.
            width = written / _FLOAT_BYTES / max(1, sum(map(wiring.size, op.outputs)))
            kernel = Kernel(
                (op.name,),
                op.op_type,
                _shown(dtype or wiring.dtype(op.inputs[0])),
                _us(steps(wiring, op, low=False) * width, profile.element_rate),
                _us(read + written, speed),
                profile.launch_us,
            )
            self._placed.append((op.position, kernel))
        self._add_dequantized(op)

    def _add_dequantized(self, op: Op) -> None:
        """Dequantize the quantized results of an op that are also needed as floats."""
        for tensor in op.outputs:
            if self._storage.is_quantized(tensor) and self._storage.float_too(tensor):
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
        self._add_pass(op, REFORMAT, dtype, _us(moved, self._profile.reformat_bandwidth))

    def _add_pass(self, op: Op, kind: str, dtype: ir.DataType, memory_us: float) -> None:
        kernel = Kernel((op.name,), kind, _shown(dtype), 0.0, memory_us, self._profile.launch_us)
        self._placed.append((op.position, kernel))


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
