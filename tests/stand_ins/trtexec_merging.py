"""Kernels of the stand-in trtexec, and which of them become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

LAUNCH_MS = 0.003
"""What a kernel takes, however little it does."""


@dataclass
class Kernel:
    """A layer of the engine.

    Attributes:
        kind: conv, gemm, pool, pointwise, norm, move, free, qdq, reformat, foreign or other.
        nodes: The nodes that it executes, and the Q/DQ that are part of it.
        terms: What its name is made of.
        ops: Their op types.
        inputs: Tensors with their types.
        outputs: The same.
        kind_of_math: The type that it computes in.
        fixed_ms: Time that doesn't depend on sizes.
        work_ms: Time that does.
        weight: Elements of its weight.
        position: Where it stands in the order of execution.
    """

    kind: str
    nodes: list[str]
    terms: list[str]
    ops: list[str]
    inputs: list[tuple[str, str]] = field(default_factory=list)
    outputs: list[tuple[str, str]] = field(default_factory=list)
    kind_of_math: str = "Float"
    fixed_ms: float = LAUNCH_MS
    work_ms: float = 0.0
    weight: int = 0
    position: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)


def merge_siblings(
    kernels: Sequence[Kernel], shapes: Mapping[str, tuple[int, ...]]
) -> list[Kernel]:
    """Products of one tensor with weights of one size become one kernel."""
    seen: dict[tuple[Any, ...], Kernel] = {}
    kept = []
    for kernel in kernels:
        alone = kernel.kind in ("conv", "gemm") and len(kernel.inputs) == 1
        alone = alone and kernel.weight > 0 and len(kernel.ops) == 1
        key: tuple[Any, ...] = (id(kernel),)
        if alone:
            shape = shapes.get(kernel.outputs[0][0])
            key = (kernel.inputs[0], kernel.weight, kernel.kind_of_math, kernel.kind, shape)
        other = seen.setdefault(key, kernel)
        if other is kernel:
            kept.append(kernel)
            continue
        other.terms += ["||", *kernel.terms]
        other.nodes += kernel.nodes
        other.ops += kernel.ops
        other.outputs += kernel.outputs
        other.work_ms += kernel.work_ms
    return kept


def merge_foreign(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Before 9, what has products of matrices in it is compiled as a whole."""
    kept: list[Kernel] = []
    run: list[Kernel] = []
    for kernel in (*kernels, None):
        if kernel is not None and kernel.kind not in ("conv", "pool") and "Gemm" not in kernel.ops:
            run.append(kernel)
            continue
        compiled = any("MatMul" in each.ops or each.kind == "norm" for each in run)
        kept += [_foreign(run)] if compiled else run
        run = []
        kept += [] if kernel is None else [kernel]
    return kept


def _foreign(run: list[Kernel]) -> Kernel:
    inside = {name for kernel in run for name, _ in kernel.outputs}
    read = {name for kernel in run for name, _ in kernel.inputs}
    return Kernel(
        "foreign",
        [name for kernel in run for name in kernel.nodes],
        [run[0].terms[-1], run[-1].terms[-1]],
        [op for kernel in run for op in kernel.ops],
        [pair for kernel in run for pair in kernel.inputs if pair[0] not in inside],
        [pair for kernel in run for pair in kernel.outputs if pair[0] not in read]
        or run[-1].outputs,
        run[0].kind_of_math,
        LAUNCH_MS + 0.5 * sum(kernel.fixed_ms for kernel in run),
        sum(kernel.work_ms for kernel in run),
        sum(kernel.weight for kernel in run),
        run[-1].position,
    )
