"""The times of the layers of a built engine, mapped to the nodes of the model."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.engines.tensorrt._layer_naming import map_layers
from qdqtune.engines.tensorrt._layers import Layer
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


def ms_of_layers(
    layers: Sequence[Layer], profile: Sequence[tuple[str, float]]
) -> list[tuple[Layer, float]]:
    """Brings times and layers together.

    Both are in order of execution, so layers with equal names are told apart by their order.

    Args:
        layers: The layers.
        profile: Names and times, as `parse_profile` returns them.

    Returns:
        A layer and its milliseconds per entry of the profile, in its order; of layers that are not
        among the given ones only the name is known.
    """
    waiting: defaultdict[str, deque[Layer]] = defaultdict(deque)
    for layer in layers:
        waiting[layer.name].append(layer)
    timed = []
    for name, ms in profile:
        same = waiting[name]
        timed.append((same.popleft() if same else Layer(name, ""), ms))
    if len(layers) == len(timed) and any(waiting.values()):
        # Some names are written in another way, but the layers are the same ones.
        return [(layer, ms) for layer, (_, ms) in zip(layers, timed, strict=True)]
    return timed


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
    model: str, layers: Sequence[Layer], profile: Sequence[tuple[str, float]]
) -> list[LayerTime]:
    """Combines layers, their times and the model's nodes.

    Args:
        model: The model file; only its structure is read.
        layers: TensorRT's layers.
        profile: Names of layers and milliseconds, in order of execution; empty if not timed.
    """
    origins = _origins(model, layers)
    numbered: Counter[str] = Counter()
    times = []
    for layer, ms in ms_of_layers(layers, profile or [(layer.name, 0.0) for layer in layers]):
        time = layer.timed(ms)
        numbered[time.name] += 1  # times are looked up by name
        count = numbered[time.name]
        own_name = time.name if count == 1 else f"{time.name} ({count})"
        times.append(replace(time, name=own_name, origins=origins.get(time.name, time.origins)))
    return times


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


def _origins(model: str, layers: Sequence[Layer]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each layer, where name or wiring reveals more than its metadata."""
    proto = onnx.load(model, load_external_data=False)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for layer in map_layers(GraphIndex(ir.from_proto(proto)), layers):
        if layer.executes:
            found[layer.name.partition("#")[0]] += layer.nodes
    return {name: tuple(dict.fromkeys(nodes)) for name, nodes in found.items()}
