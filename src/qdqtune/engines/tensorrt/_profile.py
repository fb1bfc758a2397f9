"""The times of the layers of a built engine, mapped to the nodes of the model."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.engines.layers._tensorrt_layer_info import LayerInfo
from qdqtune.engines.layers._tensorrt_layers import Layer
from qdqtune.engines.layers._tensorrt_mapper import map_layers, names, precision_of
from qdqtune.engines.layers._tensorrt_naming import LayerKind, kind_of
from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import LayerTime
from qdqtune.records._untrusted_files import parse_json

# As trtexec writes it, with names as they are: a quote or a backslash in one makes no valid JSON.
_ENTRY = re.compile(
    r'\{ "name" : "(?P<name>[^\n]*?)", "timeMs" : (?P<timeMs>[^,}\s]+)'
    r'(?:, "averageMs" : (?P<averageMs>[^,}\s]+))?(?:, "medianMs" : (?P<medianMs>[^,}\s]+))?'
)
_COUNT = re.compile(r'\{ "count" : (?P<count>\d{1,18}) \}')
_START = '{ "name" : "'


@dataclass(frozen=True)
class TimedLayer:
    """A layer and how long it takes.

    Attributes:
        layer: The layer; only its name is known if the layer information doesn't have it.
        ms: Milliseconds per run.
    """

    layer: Layer
    ms: float

    @property
    def kind(self) -> LayerKind:
        """What the time is spent on."""
        return kind_of(self.layer)

    @property
    def time(self) -> LayerTime:
        """The form that all engines tell times in."""
        layer = self.layer
        return LayerTime(
            name=layer.name,
            op_type=layer.kind,
            ms=self.ms,
            precision=precision_of(layer),
            origins=layer.nodes,
            inputs=names(layer.inputs),
            outputs=names(layer.outputs),
        )


def parse_profile(text: str) -> list[tuple[str, float]]:
    """Reads a profile: names of layers and milliseconds per run, in order of execution.

    The time is the median over the runs; in files without medians, the mean.

    Raises:
        ValueError: If it is none, or not all of one.
    """
    text = text.lstrip("\ufeff").strip()
    if not text.startswith("["):
        raise ValueError("it is no profile: it doesn't begin with a list")
    if not text.endswith("]"):
        raise ValueError(f"the profile is cut off after {len(text)} characters")
    listed = _as_written(text) if _START in text else _as_json(text)
    runs = next((runs for each in listed if (runs := _number(each.get("count")))), 1.0)
    entries = [entry for entry in listed if isinstance(entry.get("name"), str)]
    if not entries:
        raise ValueError("the profile has no layers")
    return [(entry["name"], _ms(entry, runs)) for entry in entries]


def ms_of_layers(info: LayerInfo, profile: Sequence[tuple[str, float]]) -> list[TimedLayer]:
    """Brings times and layers together.

    Both are in order of execution, so layers with equal names are told apart by their order.

    Args:
        info: The layers.
        profile: Names and times, as `parse_profile` returns them.

    Returns:
        One item per entry of the profile, in its order.
    """
    waiting: defaultdict[str, deque[Layer]] = defaultdict(deque)
    for layer in info.layers:
        waiting[layer.name].append(layer)
    timed = []
    for name, ms in profile:
        same = waiting[name]
        timed.append(TimedLayer(same.popleft() if same else Layer(name, ""), ms))
    if len(info.layers) == len(timed) and any(waiting.values()):
        # Some names are written in another way, but the layers are the same ones.
        return [TimedLayer(a, b.ms) for a, b in zip(info.layers, timed, strict=True)]
    return timed


def ms_by_kind(layers: Iterable[TimedLayer]) -> dict[LayerKind, float]:
    """Milliseconds per run of all layers of a kind together."""
    spent = dict.fromkeys(LayerKind, 0.0)
    for each in layers:
        spent[each.kind] += each.ms
    return spent


def _as_written(text: str) -> Sequence[Mapping[str, Any]]:
    entries = [match.groupdict() for match in _ENTRY.finditer(text)]
    if len(entries) != text.count(_START):
        raise ValueError("the profile has entries without times")
    return [match.groupdict() for match in _COUNT.finditer(text)] + entries


def _as_json(text: str) -> Sequence[Mapping[str, Any]]:
    try:
        listed = parse_json(text, "The profile", strict=False)
    except ValueError as error:
        raise ValueError(f"the profile is no JSON: {error}") from None
    return [entry for entry in listed if isinstance(entry, Mapping)]


def _ms(entry: Mapping[str, Any], runs: float) -> float:
    for key in ("medianMs", "averageMs"):
        value = _number(entry.get(key))
        if value is not None:
            return value
    total = _number(entry.get("timeMs"))
    if total is None:
        raise ValueError(f"the profile tells no time of the layer {entry['name'][:80]!r}")
    return total / runs


def _number(value: Any) -> float | None:
    """The number, if it is one that can be a time."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


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
