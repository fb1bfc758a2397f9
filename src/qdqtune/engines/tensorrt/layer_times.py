"""The layers of a built engine with their times, mapped to the nodes of the model."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.engines.tensorrt.layer_info import LayerInfo
from qdqtune.engines.tensorrt.layer_nodes import map_layers
from qdqtune.engines.tensorrt.profile import TimedLayer, ms_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.records.measurement import LayerTime


def layer_times_of(
    model: str, info: LayerInfo, profile: Sequence[tuple[str, float]]
) -> list[LayerTime]:
    """Combines layers, their times and the model's nodes.

    Args:
        model: The model file; only its structure is read.
        info: TensorRT's information about the layers.
        profile: Names of layers and milliseconds, in order of execution; empty if not timed.
    """
    timed = ms_of_layers(info, profile) if profile else [TimedLayer(e, 0.0) for e in info.layers]
    origins = _origins(model, info)
    return _with_own_names(
        replace(each.time, origins=origins.get(each.layer.name, each.time.origins))
        for each in timed
    )


def make_profiler(api: Any) -> Any:
    """Create a profiler; `medians(runs)` returns names and milliseconds."""

    class Profiler(api.IProfiler):  # type: ignore[misc]
        def __init__(self) -> None:
            api.IProfiler.__init__(self)
            self.told: list[tuple[str, float]] = []

        def report_layer_time(self, name: str, ms: float) -> None:
            self.told.append((name, ms))

        def medians(self, runs: int) -> list[tuple[str, float]]:
            layers = len(self.told) // runs
            return [
                (name, statistics.median(ms for _, ms in self.told[place::layers]))
                for place, (name, _) in enumerate(self.told[:layers])
            ]

    return Profiler()


def _origins(model: str, info: LayerInfo) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each layer, where name or wiring reveals more than its metadata."""
    proto = onnx.load(model, load_external_data=False)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for layer in map_layers(GraphIndex(ir.from_proto(proto)), info):
        if layer.executes:
            found[layer.name.partition("#")[0]] += layer.nodes
    return {name: tuple(dict.fromkeys(nodes)) for name, nodes in found.items()}


def _with_own_names(layers: Iterable[LayerTime]) -> list[LayerTime]:
    """Number layers of equal names: times are looked up by name."""
    seen: defaultdict[str, int] = defaultdict(int)
    found = []
    for layer in layers:
        seen[layer.name] += 1
        count = seen[layer.name]
        found.append(layer if count == 1 else replace(layer, name=f"{layer.name} ({count})"))
    return found
