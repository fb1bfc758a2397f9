"""Subgraph mode: the engine's fusion groups, their subgraphs profiled, the best assembly tried."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines import _registry as registry
from qdqtune.engines._options import float_type_in_effect
from qdqtune.graph._atomic_files import sha256_of, writing
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import dims_of, resolve_shapes
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._inputs import request_of
from qdqtune.records._measurement import LayerTime
from qdqtune.records._tuning import INTERRUPTED
from qdqtune.search._space import Space, State
from qdqtune.search.strategies._assembly_search import SubgraphTask
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import Limits, Score, SearchTask, Trial
from qdqtune.search.subgraphs._assembly import assemble_closed
from qdqtune.search.subgraphs._costs import ObservedCosts, costs_of, look_at
from qdqtune.search.subgraphs._distinct_subgraphs import Subgraph, find_subgraphs
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._quantizable_groups import (
    Choices,
    QuantizableGroup,
    make_choices,
    make_units,
)
from qdqtune.workflows._convert import written_type
from qdqtune.workflows._shape_ranges import MAX, MIN, Shapes, static_shapes
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._calibrate import Calibration
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._layer_groups import copy_log, find_groups, write_layer_file
from qdqtune.workflows.tuning._preflight import AS_GIVEN, seeds_of
from qdqtune.workflows.tuning._search import Mode
from qdqtune.workflows.tuning._search_problem import Preparation, SearchProblem
from qdqtune.workflows.tuning._setup import TuningTarget
from qdqtune.workflows.tuning._subgraph_costs import SubgraphCache, SubgraphProfiling
from qdqtune.workflows.tuning._subgraph_profiler import SubgraphProfiler

_logger = logging.getLogger(__name__)


def find_engine_groups(
    ctx: RunContext, target: TuningTarget, index: GraphIndex, plain: Path, cache: SubgraphCache
) -> tuple[FusionGroup, ...]:
    """The engine's groups, or what an earlier run found.

    Args:
        ctx: The run.
        target: What is tuned.
        index: The float model.
        plain: The same as a file.
        cache: What is known, and where groups go.
    """
    if cache.groups is None or not _is_whole(index, cache.groups):
        graph_json = target.request.config.graph_json
        told = None if graph_json is None else Path(graph_json)
        own = _write_layers(ctx, target, plain) if told is None else None
        groups, times = find_groups(index, ctx.engines.engine, plain, target.feeds, told, own)
        structural = sum(group.is_structural for group in groups)
        cache.keep_groups([(group.nodes, times[group.number]) for group in groups], structural)
    assert cache.groups is not None
    ctx.reporter.tell(
        "groups",
        f"{len(index.nodes)} ops in {len(cache.groups)} fusion groups, "
        f"{cache.structural} of them by structure",
    )
    return tuple(FusionGroup(n, nodes, ()) for n, (nodes, _) in enumerate(cache.groups))


def layer_files(ctx: RunContext, target: TuningTarget) -> dict[str, str]:
    """Names of files with layers that this run, or an earlier one, has written."""
    if target.request.config.graph_json is not None:
        return {}
    model, folder, float_type = target.request.model, ctx.folder, _float_type(target)
    files = {
        "graph_json": folder.layer_file(model, float_type),
        "build_log": folder.build_log(model, float_type),
    }
    return {name: file.name for name, file in files.items() if file.is_file()}


def _is_whole(index: GraphIndex, groups: Sequence[tuple[tuple[str, ...], float]]) -> bool:
    """Whether groups have every node of the model, once."""
    nodes = [name for group, _ in groups for name in group]
    return len(nodes) == len(index.node) and index.node.keys() == set(nodes)


def _float_type(target: TuningTarget) -> str:
    """What the engine computes floats in."""
    return float_type_in_effect(target.info, written_type(target.source.model)).value


def _write_layers(ctx: RunContext, target: TuningTarget, plain: Path) -> Path | None:
    """The file with the engine's layers of the float model; None if it writes none."""
    if not registry.entry(target.request.engine).writes_layers:
        return None
    converted = ctx.folder.converted
    if converted.is_file():  # the same of the float type that was wanted, if another one is tuned
        float_type = written_type(load_model(converted)).value
        if float_type != _float_type(target):
            model = converted.with_name(f"{float_type}.onnx")  # so that its log has that name
            with writing(model):
                shutil.copyfile(converted, model)
            _write_layer_file(ctx, target, model, float_type)
    return _write_layer_file(ctx, target, plain, _float_type(target))


def _write_layer_file(
    ctx: RunContext, target: TuningTarget, model: Path, float_type: str
) -> Path | None:
    request, folder = target.request, ctx.folder
    layers = folder.layer_file(request.model, float_type)
    if not write_layer_file(ctx.engines.engine, model, target.feeds, layers):
        return None
    log = folder / names.LOGS / request.engine / f"{model.stem}.log"
    copy_log(log, folder.build_log(request.model, float_type))
    return layers


RAW = "raw"
NOT_TRIED = ("weighted ops", "weighted ops and what is between")
"""Whole-model choices of `seeds_of` that are not worth a build beside the assembly."""

# Where a model takes longer to build, builds are saved: what a subgraph costs as float is what it
# was seen to cost in the float model, and only gains that are worth a build are tried.
_SLOW_BUILD_S = 10.0


@dataclass(frozen=True)
class Units:
    """What the subgraphs came to.

    Attributes:
        groups: The engine's fusion groups.
        units: Those that can be quantized.
        choices: Which choices of the search they are.
        plain: The float model's times by unit.
    """

    groups: tuple[FusionGroup, ...]
    units: Sequence[QuantizableGroup]
    choices: Choices
    plain: ObservedCosts

    @property
    def of_node(self) -> dict[str, int]:
        """The number of the unit that each node is in."""
        return {
            name: number
            for number, unit in enumerate(self.units)
            for name in self.groups[unit.group].nodes
        }

    @property
    def shares(self) -> dict[str, float]:
        """The part of the float model's time that goes into each node."""
        total = sum(self.plain.unit_ms.values()) + self.plain.rest_ms
        return {
            name: self.plain.unit_ms.get(number, 0.0) / len(unit.scheme.places) / (total or 1.0)
            for number, unit in enumerate(self.units)
            for name in unit.scheme.nodes(unit.content)
        }

    @property
    def stamp(self) -> str:
        """What the numbers of units mean: another set of them has another one."""
        meant = [(unit.group, unit.scheme.name) for unit in self.units]
        return hashlib.blake2b(repr(meant).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True)
class AssemblyProblem(SearchProblem):
    """Assemblies of subgraphs, tried on the whole model; where its time goes corrects the costs.

    Attributes:
        units: What the subgraphs came to.
        inserter: Writes candidates.
        cache: Where it is written down what was seen and tried.
    """

    units: Units
    inserter: Inserter
    cache: SubgraphCache

    wants_layers: ClassVar[bool] = True

    def saw_layers(self, state: State, layers: Sequence[LayerTime]) -> None:
        """Look at where the time of a candidate goes, and write it down."""
        if not layers:
            return
        space, units = self.space, self.units
        index = GraphIndex(self.inserter.model(space.placement(state)))
        real = space.closed(state)
        quantized, otherwise = units.choices.units(real), units.choices.otherwise(real)
        weights = [units.plain.unit_ms.get(n, 0.0) for n in range(len(units.units))]
        seen = look_at(index, layers, units.of_node, quantized, otherwise, weights)
        self.cache.keep_seen(space.key(state), seen, units.stamp)

    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Answer a trial; the strategy knows before where the time of its candidates goes."""
        for state in trial.candidates:
            seen = self.cache.seen_in(self.space.key(state), self.units.stamp)
            if seen is not None:
                self.strategy.observe(state, seen)
        self.strategy.tell(trial, scores)
        self.cache.keep_batches(self.strategy.batches)


class SubgraphMode(Mode):
    """Profiles the subgraphs that the engine fuses, and tries the best assembly of them."""

    def profile(self) -> None:
        """Nothing: the subgraphs tell where the time goes."""

    def prepare(self, planner: QuantizationPlanner, calibration: Calibration) -> SearchProblem:
        """Find the groups, profile their subgraphs, and put together the cheapest assembly."""
        ctx, target, baseline = self.ctx, self.target, self.baseline
        request, engines, grouping = target.request, ctx.engines, calibration.grouping
        layers = request.config.graph_json
        told_by = sha256_of(Path(layers)) if layers is not None else ""
        cache = SubgraphCache(ctx.folder / names.SUBGRAPH_CACHE, target.identity.header, told_by)
        base, done = baseline.base, Preparation()
        assembler = _Assembler(ctx, target, planner, calibration, cache)
        try:
            dims = {name: dims_of(value) for name, value in base.index.value.items()}
            ranges = _shape_ranges(ctx, target, base)
            samples = target.provider.evaluation_samples()
            with static_shapes(base, engines.runner, target.provider.shapes, samples) as index:
                groups = find_engine_groups(ctx, target, planner.index, baseline.file, cache)
                done = replace(done, files=layer_files(ctx, target))
                is_slow = cache.keep_build_s(baseline.build_s) > _SLOW_BUILD_S
                may = {name for group in grouping.groups for name in group.nodes}
                subgraphs = find_subgraphs(index, groups, planner, grouping.ruled, may, few=is_slow)
                profiler = SubgraphProfiler(
                    engines.engine, calibration.inserter, planner, index, dims,
                    ctx.folder / names.SUBGRAPHS, request.preset,
                )  # fmt: skip
                profiling = SubgraphProfiling(ctx, target, profiler, cache, ranges)
                stopped = profiling.run(subgraphs, measure_float=not is_slow)
                done = replace(
                    done, benchmarks=profiler.benchmarks, failed=profiler.failed, stopped=stopped
                )
                found = make_units(subgraphs, cache.subgraphs, planner)
            choices = make_choices(found, subgraphs, cache.subgraphs, planner, grouping.ruled)
            units = Units(groups, found, choices, _float_times(found, cache))
            done = replace(done, subgraphs=_counts(subgraphs, units, cache))
            if not units.units and subgraphs:
                done = replace(done, why_nothing=_why_no_unit(subgraphs, cache))
                if any(cache.subgraphs.get(subgraph.key) for subgraph in subgraphs):
                    return assembler.without_subgraphs(done)
            return assembler.problem(units, done, is_slow=is_slow)
        except KeyboardInterrupt:
            space = Space(planner, (), {})
            done = replace(done, stopped=INTERRUPTED)
            return SearchProblem(space, make_strategy(SearchTask(space)), {}, done)


@dataclass(frozen=True)
class _Assembler:
    """Makes what the subgraphs came to a problem for the whole model."""

    ctx: RunContext
    target: TuningTarget
    planner: QuantizationPlanner
    calibration: Calibration
    cache: SubgraphCache

    def problem(self, units: Units, done: Preparation, *, is_slow: bool) -> SearchProblem:
        """The cheapest assembly, what it is compared with, and how it may be improved."""
        request, choices = self.target.request, units.choices
        inserter = self.calibration.inserter
        space = Space(self.planner, choices.groups, units.shares)
        costs = costs_of(units.units, units.groups, inserter.base.index, units.plain)

        def closed(state: State) -> State:
            return choices.units(space.closed(choices.state(state)))

        raw = choices.state(assemble_closed(costs, closed))
        others = self._seeds(space)
        seeds = {RAW: raw, **(others if request.config.incremental_validation else {})}
        self._write_raw(space, raw)
        alike: dict[int, set[int]] = {}
        for number, unit in enumerate(units.units):
            if not unit.is_passthrough:
                alike.setdefault(unit.subgraph, set()).add(number)
        most = request.config.max_benchmarks
        limits = Limits(benchmarks=request.preset.assemblies if most is None else most)
        task = SubgraphTask(
            space, seeds, limits, request.config.seed, choices=choices, costs=costs,
            alike=[frozenset(part) for part in alike.values()],
            incremental=request.config.incremental_validation, frugal=is_slow,
        )  # fmt: skip
        search = make_strategy(task, request.config.strategy)
        search.observe(frozenset(), units.plain)
        self.ctx.reporter.tell(
            "assembly", f"{len(choices.units(raw))} of {len(units.units)} groups quantized"
        )
        return AssemblyProblem(
            space=space, strategy=search, seeds=seeds, preparation=done, units=units,
            inserter=inserter, cache=self.cache,
        )  # fmt: skip

    def without_subgraphs(self, done: Preparation) -> SearchProblem:
        """Whole models are tried all the same: the engine may take in them what it can't alone."""
        request = self.target.request
        _logger.warning("%s; whole models are tried without them", done.why_nothing)
        space = Space(self.planner, self.calibration.grouping.groups, {})
        seeds = self._seeds(space)
        most = request.config.max_benchmarks
        limits = Limits(benchmarks=len(seeds) if most is None else min(most, len(seeds)))
        self._write_raw(space, frozenset())
        task = SearchTask(space, seeds, limits, request.config.seed)
        return SearchProblem(space, make_strategy(task), seeds, done)

    def _seeds(self, space: Space) -> dict[str, State]:
        found = seeds_of(space, self.target.given, self.calibration.grouping)
        return {name: state for name, state in found.items() if name not in NOT_TRIED}

    def _write_raw(self, space: Space, raw: State) -> None:
        """What the subgraphs alone lead to, before anything of it was tried on the whole model."""
        path, inserter = self.ctx.folder / names.RAW, self.calibration.inserter
        placement = space.placement(raw)
        if placement:
            save_model(inserter.model(placement), path, force=True)
        elif AS_GIVEN in self.target.given:  # the model as given is not what this is about
            save_model(inserter.base.load(inserter.base.whole()), path, force=True)
        else:
            self.ctx.folder.copy_model(self.target.request.file, path)


def _shape_ranges(ctx: RunContext, target: TuningTarget, base: PreparedModel) -> dict[str, Shapes]:
    """Shapes of all tensors at the smallest and the largest inputs, if they were given."""
    config, model = target.request.config, base.index.model
    found: dict[str, Shapes] = {}
    for label, asked in ((MIN, config.min_shapes), (MAX, config.max_shapes)):
        if (request := request_of(asked)) is not None:
            shapes = resolve_shapes(model, request)
            samples = random_inputs(base.index, 1, replace(request, shapes=shapes, dims={}))
            with static_shapes(base, ctx.engines.runner, shapes, samples) as index:
                sizes = {tensor: index.shape(tensor) for tensor in index.value}
            found[label] = {
                tensor: tuple(dim or 0 for dim in dims)
                for tensor, dims in sizes.items()
                if dims is not None and None not in dims
            }
    return found


def _float_times(units: Sequence[QuantizableGroup], cache: SubgraphCache) -> ObservedCosts:
    """The float model's times by unit."""
    assert cache.groups is not None
    times = [ms for _, ms in cache.groups]
    of_units = {number: times[unit.group] for number, unit in enumerate(units)}
    return ObservedCosts(frozenset(), of_units, sum(times) - sum(of_units.values()))


def _counts(subgraphs: Sequence[Subgraph], units: Units, cache: SubgraphCache) -> dict[str, int]:
    return {
        "groups": len(units.groups),
        "structural": cache.structural,
        "pieces": sum(subgraph.key in cache.subgraphs for subgraph in subgraphs),
        "all_pieces": len(subgraphs),
        "units": len(units.units),
    }


def _why_no_unit(subgraphs: Sequence[Subgraph], cache: SubgraphCache) -> str:
    found = (cache.subgraphs.get(subgraph.key) for subgraph in subgraphs)
    errors = [f.error for times in found if times is not None for f in times.forms if f.error]
    why = Counter(errors).most_common(1)[0][0].splitlines()[0] if errors else ""
    return f"no subgraph of it could be timed{': ' + why if why else ''}"
