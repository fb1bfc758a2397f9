"""Reads ONNX Runtime's profile: a Chrome trace with one event per executed kernel.

The profile has times and types, the optimized model has the wiring; they are joined by the names of
nodes, and by the order of nodes that share a name.
"""

from __future__ import annotations

import bisect
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from qdqtune.records._measurement import LayerTime

_KERNEL_SUFFIX = "_kernel_time"
_TYPES = {"double": "float64", "float": "float32"}
# They contain kernels that have their own events.
_WITH_BODIES = frozenset({"If", "Loop", "Scan"})


def layer_times_of(
    text: str, skip_runs: int = 0, optimized: onnx.ModelProto | None = None
) -> list[LayerTime]:
    """Sums the kernel times of each node per run, and returns the mean of the faster runs.

    Time slices of other processes last milliseconds, longer than most kernels. On two shared cores,
    means of 20 runs were 0.62 ms for one and 0.01 ms for the other of two equal convolutions.

    Args:
        text: Contents of the profile file.
        skip_runs: First runs of the model that do not count.
        optimized: The graph that ran, used for its wiring; weights are ignored.

    Returns:
        One entry per node of the main graph, in order of first execution.

    Raises:
        ValueError: The profile holds no run beyond the skipped ones.
    """
    events: list[dict[str, Any]] = json.loads(text)
    starts = sorted(event["ts"] for event in events if event.get("name") == "model_run")
    if len(starts) <= skip_runs:
        raise ValueError("the engine's profile holds no run of the model")
    kernels = (event for event in events if str(event.get("name", "")).endswith(_KERNEL_SUFFIX))
    found: dict[tuple[str, str, str], _Kernel] = {}
    for event in _outermost(sorted(kernels, key=lambda event: (event["ts"], -event["dur"]))):
        run = bisect.bisect_right(starts, event["ts"]) - 1 - skip_runs
        if run >= 0:
            kernel = _Kernel.from_event(event)
            found.setdefault(kernel.key, kernel).spent_us[run] += float(event["dur"])
    nodes = _NodesByName(optimized.graph.node if optimized is not None else ())
    return [kernel.layer(len(starts) - skip_runs, nodes) for kernel in found.values()]


@dataclass
class _Kernel:
    name: str
    op_type: str
    provider: str
    index: str
    precision: str
    spent_us: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> _Kernel:
        details = event.get("args", {})
        return cls(
            name=str(event["name"]).removesuffix(_KERNEL_SUFFIX),
            op_type=str(details.get("op_name", "")),
            provider=str(details.get("provider", "")),
            index=str(details.get("node_index", "")),
            precision=_precision(details),
        )

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.op_type, self.index

    def layer(self, runs: int, nodes: _NodesByName) -> LayerTime:
        quicker = sorted(self.spent_us[run] for run in range(runs))[: (runs + 1) // 2]
        ms = sum(quicker) / len(quicker) / 1000.0
        node = nodes.take(self) or onnx.NodeProto()
        return LayerTime(
            self.name,
            self.op_type,
            ms,
            self.provider,
            self.precision,
            origins=(node.name,) if node.name else (),
            inputs=tuple(tensor for tensor in node.input if tensor),
            outputs=tuple(tensor for tensor in node.output if tensor),
        )


class _NodesByName:
    """Nodes of the optimized graph by name; nodes that share a name are returned in order."""

    def __init__(self, nodes: Iterable[onnx.NodeProto]) -> None:
        self._nodes: defaultdict[tuple[str, str], list[onnx.NodeProto]] = defaultdict(list)
        for node in nodes:
            self._nodes[node.name, node.op_type].append(node)

    def take(self, kernel: _Kernel) -> onnx.NodeProto | None:
        """Return the node of a kernel; an unnamed one is called after its op and its number."""
        default_name = f"{kernel.op_type}_{kernel.index}"
        for name in (kernel.name, "") if kernel.name == default_name else (kernel.name,):
            if waiting := self._nodes.get((name, kernel.op_type)):
                return waiting.pop(0)
        return None


def _outermost(kernels: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield kernels of the main graph: the time of a body is part of its op's time."""
    busy_until = 0.0
    for event in kernels:
        if event["ts"] < busy_until:
            continue
        if event.get("args", {}).get("op_name") in _WITH_BODIES:
            busy_until = float(event["ts"]) + float(event["dur"])
        yield event


def _precision(details: dict[str, Any]) -> str:
    """Return the type of the first input that is not a condition, else of the output."""
    both = (details.get("input_type_shape"), details.get("output_type_shape"))
    types = (name for described in both for entry in described or () for name in entry)
    return next((_TYPES.get(name, name) for name in types if name != "bool"), "")
