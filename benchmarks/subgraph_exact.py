"""Subgraph mode against all placements of small random models, on the simulated engine.

Every subset of a model's fusion groups is timed, and every subset of the ops that can be quantized:
the best of both is what a run has to find. Nothing is measured, so it is the same everywhere.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from benchmarks.subgraph_models import random_model
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._measurement import LayerTime
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.search.subgraphs._assembly import assemble
from qdqtune.search.subgraphs._costs import Costs, Crossing
from qdqtune.search.subgraphs._fusion_groups import fusion_groups
from qdqtune.testing.simulated import PROFILES, QUIET, Kernel, Profile, kernels_of, true_latency_ms
from qdqtune.testing.simulated._engine import COST_MODEL_VERSION
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._tune import tune

TABLES = Path(__file__).parents[1] / "work" / "subgraphs"
ADDITIVE, COUPLED = "additive", "coupled"
SWITCHES = {ADDITIVE: {"fusion": "0", "layout": "0"}, COUPLED: {}}
"""Engine options: costs that add up, and those with fusion and layouts."""
_CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "Reformat"})
_FLOAT_BYTES, _LOW_BYTES = 4, 1
_IMAGE_RANK = 4


def machine(kind: str, profile: str) -> Profile:
    """The simulated machine of a kind of case."""
    switches = SWITCHES[kind]
    return replace(
        PROFILES[profile], fuses="fusion" not in switches, has_layouts="layout" not in switches
    )


class Landscape:
    """All placements of one model on one machine.

    Args:
        model: The model.
        profile: The machine.
        folder: For weights.
    """

    def __init__(self, model: onnx.ModelProto, profile: Profile, folder: Path) -> None:
        path = folder / "given.onnx"
        onnx.save(model, path)
        base = PreparedModel(open_source(path).model, folder)  # cleaned up as a run does it
        self.index = base.index
        self.profile = profile
        floats = [name for name in self.index.value if self.index.is_float(name)]
        ranges = Ranges(dict.fromkeys(floats, (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
        dialect = dialect_named(profile.dialect)
        self._inserter = Inserter(base, dialect, "int8", ranges)
        self.planner = QuantizationPlanner(self.index, dialect)
        layers = [
            LayerTime(k.name, k.op_type, k.ms, precision=k.precision, origins=k.nodes)
            for k in self.kernels(())
        ]
        found = fusion_groups(self.index, nodes_of_layers(self.index, layers))
        self.groups = tuple(group.nodes for group in found)
        self._known: dict[str, float] = {}

    @property
    def choices(self) -> list[tuple[str, ...]]:
        """What can be quantized of each group, where something can."""
        units = self.planner.units
        parts = (tuple(name for name in nodes if name in units) for nodes in self.groups)
        return [part for part in parts if part]

    def kernels(self, names: Iterable[str]) -> tuple[Kernel, ...]:
        """What the model comes to with these ops quantized."""
        placement = self.planner.placement(tuple(names))
        return kernels_of(self._inserter.proto(placement), self.profile)

    def ms(self, names: Iterable[str]) -> float:
        """The true latency with these ops quantized."""
        placement = self.planner.placement(tuple(names))
        key = placement.digest()
        if key not in self._known:
            self._known[key] = true_latency_ms(self._inserter.proto(placement), self.profile)
        return self._known[key]

    def best_ms(self, choices: Sequence[tuple[str, ...]]) -> float:
        """The least latency of all subsets of choices."""
        return min(
            self.ms(itertools.chain.from_iterable(chosen))
            for count in range(len(choices) + 1)
            for chosen in itertools.combinations(choices, count)
        )


@contextmanager
def landscape(seed: int, kind: str, profile: str) -> Iterator[Landscape]:
    """The placements of a random model."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        yield Landscape(random_model(seed), machine(kind, profile), Path(folder))


@dataclass(frozen=True)
class Optimum:
    """What enumeration found.

    Attributes:
        float_ms: The latency as float.
        groups_ms: The least of all subsets of fusion groups.
        ops_ms: The least of all subsets of ops.
        assembled_ms: The truth about what the assembly chooses from costs that are read off kernels
            of the whole model.
        groups: Fusion groups in which something can be quantized.
        ops: Ops that can be.
    """

    float_ms: float
    groups_ms: float
    ops_ms: float
    assembled_ms: float
    groups: int
    ops: int

    @property
    def best_ms(self) -> float:
        """The least of all."""
        return min(self.groups_ms, self.ops_ms)


def optimum(seed: int, kind: str, profile: str) -> Optimum:
    """The best placement of a random model, computed unless it was before."""
    with landscape(seed, kind, profile) as land:
        stamp = [
            COST_MODEL_VERSION, land.ms(()), [list(nodes) for nodes in land.groups],
            list(land.planner.units),
        ]  # fmt: skip
        path = TABLES / f"{profile}-{kind}-{seed}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get("stamp") != stamp:
            ops = [(name,) for name in land.planner.units]
            found = [land.best_ms(land.choices), land.best_ms(ops), len(land.choices), len(ops)]
            known = {"stamp": stamp, "found": found}
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(known))
        groups_ms, ops_ms, groups, op_count = known["found"]
        return Optimum(land.ms(()), groups_ms, ops_ms, assembled_ms(land), groups, op_count)


def assembled_ms(land: Landscape) -> float:
    """The true latency of the assembly for costs that are read off kernels of the whole model."""
    costs = costs_from_kernels(land)
    units = land.planner.units
    state = assemble(costs)
    return land.ms(name for n in state for name in land.groups[n] if name in units)


def costs_from_kernels(land: Landscape) -> Costs:
    """What each group costs in both forms while all others are float."""
    as_float, everything = land.kernels(()), land.kernels(land.planner.units)
    owner = {name: number for number, nodes in enumerate(land.groups) for name in nodes}
    float_ms = _by_group(as_float, owner, len(land.groups))
    together_ms = _by_group(everything, owner, len(land.groups))
    quantized_ms: list[float | None] = []
    for number, nodes in enumerate(land.groups):
        names = [name for name in nodes if name in land.planner.units]
        if not names or not land.planner.compute.keys().isdisjoint(names):
            alone = [k.ms for k in land.kernels(names) if k.op_type not in _CONVERSIONS]
            # Where kernels are cut otherwise, it is this group's doing.
            changed_ms = math.fsum(alone) - math.fsum(kernel.ms for kernel in as_float)
            quantized_ms.append(max(0.0, float_ms[number] + changed_ms) if names else None)
        else:  # what only moves values is not quantized alone
            quantized_ms.append(together_ms[number])
    return Costs(tuple(float_ms), tuple(quantized_ms), tuple(_crossings(land, owner)))


def _by_group(kernels: Iterable[Kernel], owner: dict[str, int], groups: int) -> list[float]:
    spent_ms = [0.0] * groups
    for kernel in kernels:
        if kernel.op_type not in _CONVERSIONS:
            spent_ms[owner[kernel.nodes[0]]] += kernel.ms
    return spent_ms


def _crossings(land: Landscape, owner: dict[str, int]) -> Iterator[Crossing]:
    index = land.index
    outputs = {value.name for value in index.model.graph.outputs}
    for name, value in index.value.items():
        if index.is_constant(name) or not index.is_float(name):
            continue
        maker = value.producer()
        producer = None if maker is None else owner[maker.name or ""]
        readers = frozenset(owner[edge.node] for edge in index.readers(name) if edge.node)
        if readers - {producer} or name in outputs:
            ms = _conversion_ms(land, name)
            is_output = name in outputs
            yield Crossing(name, producer, readers - {producer}, is_output, ms, ms)


def _conversion_ms(land: Landscape, tensor: str) -> float:
    """A pass over a tensor, and a change of layout where there may be one."""
    profile, shape = land.profile, land.index.shape(tensor) or ()
    size = math.prod(dim or 1 for dim in shape)
    us = size * (_FLOAT_BYTES + _LOW_BYTES) / profile.conversion_bandwidth / 1000.0
    us += profile.launch_us
    if profile.has_layouts and len(shape) >= _IMAGE_RANK:
        us += 2 * size * _LOW_BYTES / profile.reformat_bandwidth / 1000.0 + profile.launch_us
    return us / 1000.0


def measure(job: tuple[int, str, str]) -> dict[str, Any]:
    """One record: what subgraph mode finds in a random model, and the optimum.

    Args:
        job: The seed, a key of `SWITCHES`, and the simulated profile.
    """
    seed, kind, profile = job
    best = optimum(seed, kind, profile)
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        path = Path(folder, "random.onnx")
        onnx.save(random_model(seed), path)
        result = tune(
            path, workflow="subgraph", engine="simulated", threads=1, preset="quick",
            engine_options={"profile": profile, **SWITCHES[kind], **QUIET},
            min_sqnr_db=None, performance_threshold=1.0, output_dir=Path(folder, "run"),
        )  # fmt: skip
        found_ms = true_latency_ms(result.model, machine(kind, profile))
        raw = Path(folder, "run", "optimized_raw.onnx")
        raw_ms = true_latency_ms(raw, machine(kind, profile)) if raw.exists() else None
    return {
        "seed": seed,
        "case": kind,
        "profile": profile,
        "groups": best.groups,
        "ops": best.ops,
        "best": best.float_ms / best.best_ms,
        "loss": found_ms / best.best_ms - 1.0,
        "groups_loss": found_ms / best.groups_ms - 1.0,
        "raw_loss": None if raw_ms is None else raw_ms / best.best_ms - 1.0,
        "kernels_loss": best.assembled_ms / best.best_ms - 1.0,
        "kept_float": result.summary.kept_float,
        "builds": result.summary.benchmarks,
        "subgraph_builds": result.summary.subgraph_benchmarks,
    }
