"""What a run searches in, and who searches: region mode, subgraph mode, and what they share."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines._options import MAX, MIN, Shapes
from qdqtune.engines.layers._latency import shares_of_latency
from qdqtune.graph._atomic_files import sha256_of
from qdqtune.graph._files import save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import dims_of, resolve_shapes
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.qdq._insert import Inserter
from qdqtune.records._inputs import request_of
from qdqtune.records._measurement import LayerTime
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import FINISHED, IN_PLACE, INTERRUPTED
from qdqtune.search._prior import Prior, prior_of
from qdqtune.search._space import Form, Grouping, Space, State
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.strategies._assembly_search import AssemblySearch, SubgraphTask
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import Limits, Score, SearchStrategy, SearchTask, Trial
from qdqtune.search.subgraphs._assembly import assemble_closed
from qdqtune.search.subgraphs._choices import Choices, make_choices
from qdqtune.search.subgraphs._costs import costs_of, refined
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._observed_costs import ObservedCosts, look_at
from qdqtune.search.subgraphs._quantizable_groups import (
    RULES,
    QuantizableGroup,
    Subgraph,
    find_subgraphs,
    make_units,
)
from qdqtune.workflows._sample_provider import static_shapes
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._baseline import Baseline, Calibration
from qdqtune.workflows.tuning._cache_folder import (
    CacheContent,
    StoredSubgraph,
    add_to_folder,
    subgraph_conditions,
)
from qdqtune.workflows.tuning._layer_groups import find_engine_groups, layer_files
from qdqtune.workflows.tuning._preflight import AS_GIVEN, STATIC_BLANKETS, layers_told, seeds_of
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._setup import TuneRequest
from qdqtune.workflows.tuning._subgraph_cache import SubgraphCache
from qdqtune.workflows.tuning._subgraph_profiler import SubgraphProfiler
from qdqtune.workflows.tuning._times_in_place import TimesInPlace

_logger = logging.getLogger(__name__)

_PROFILE_RUNS = 5
_UNFINISHED = (
    "the search takes its usual course: the runs in the cache ended before theirs was over, by "
    "--max_benchmarks, --budget or Ctrl-C; one that was finished would save benchmarks here"
)


@dataclass(frozen=True)
class Preparation:
    """What it took to find the problem.

    Attributes:
        benchmarks: Forms of subgraphs that were built and timed.
        failed: Those that the engine refused.
        subgraphs: How many groups, subgraphs and the like there are.
        files: What was written, by what it is.
        stopped: Why it ended, as the summary has it.
        why_nothing: Why there is nothing to choose; empty if there is, or if it is not known.
    """

    benchmarks: int = 0
    failed: int = 0
    subgraphs: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    stopped: str = FINISHED
    why_nothing: str = ""


@dataclass(frozen=True)
class SearchProblem:
    """A search with what it is about.

    Attributes:
        space: What can be chosen.
        strategy: Who chooses.
        seeds: Whole-model choices that it begins with, by name.
        preparation: What it took to find it.
    """

    space: Space
    strategy: SearchStrategy
    seeds: Mapping[str, State]
    preparation: Preparation = Preparation()

    wants_layers: ClassVar[bool] = False
    """Whether it wants to see where the time of candidates goes."""

    def continued(
        self, name: str, seeds: Mapping[str, State], allows: Callable[[State], bool], most: int
    ) -> SearchProblem:
        """Return the same problem with a new strategy of that name, which begins elsewhere.

        Args:
            name: The strategy.
            seeds: What it begins with.
            allows: Whether a choice is worth a benchmark.
            most: The maximum number of candidates.
        """
        task = self.strategy.task
        limits = replace(task.limits, benchmarks=most)
        task = replace(task, seeds=seeds, limits=limits, allows=allows)
        return replace(self, strategy=make_strategy(task, name))

    def saw_layers(self, state: State, layers: Sequence[LayerTime]) -> None:
        """Take in the layers that a candidate runs as, before its score is told."""

    def will_measure(self, trial: Trial) -> None:
        """Take in that a trial is about to be measured."""

    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Answer a trial that was asked for."""
        self.strategy.tell(trial, scores)


def region_problem(run: TuningRun, baseline: Baseline, calibration: Calibration) -> SearchProblem:
    """Every group of ops is a choice; the engine's profile of the float model says which matter."""
    request, grouping, journal = run.request, calibration.grouping, run.journal
    if journal.shares is None:
        run.reporter.tell("profile", "asking the engine where the float model's time goes")
        layers = layers_told(run.engine, baseline.file, run.feeds, _PROFILE_RUNS)
        index = baseline.base.index
        with at_shapes(index.model, run.provider.shapes):  # for a guess from sizes
            journal.keep_shares(shares_of_latency(index, layers))
    space = Space(calibration.planner, grouping.groups, journal.shares or {})
    prior = _prior(run, grouping)
    if run.shared is not None:
        known = len(prior.of(space)) if prior is not None else 0
        told = f"{known} of {len(space.groups)} choices are known from other runs"
        run.reporter.tell("cache", told)
    if prior is not None and prior.lacks_finished_runs(space):
        run.reporter.tell("cache", _UNFINISHED)
    seeds = seeds_of(space, run.given, grouping, prior)
    limits = request.preset.limits(
        len(space.groups), grouping.patterns,
        request.config.max_benchmarks, request.config.schemes_per_region,
    )  # fmt: skip
    limits = replace(limits, workers=len(run.pool))
    task = SearchTask(space, seeds, limits, request.config.seed, prior=prior)
    return SearchProblem(space, make_strategy(task, request.config.strategy), seeds)


def _prior(run: TuningRun, grouping: Grouping) -> Prior | None:
    """Return what other runs found out about the choices in the model."""
    caches = [run.pattern_cache, run.shared.patterns if run.shared is not None else None]
    known = PatternCache()
    for cache in caches:
        if cache is not None:
            known.merge(cache)
    return prior_of(grouping.groups, known, run.conditions)


RAW = "raw"
LESSER_BLANKETS = STATIC_BLANKETS[1:]
"""Whole-model choices that subgraph mode tries last, and only where builds take long."""

# Where a model takes longer to build, builds are saved: what a subgraph costs as float is what it
# was seen to cost in the float model, and only gains that are worth a build are tried.
_SLOW_BUILD_S = 10.0
# Less of the latency is not worth timing a subgraph alone then.
_LEAST_SHARE = 0.02
# With less of the latency in subgraphs that were timed, the rules are tried before the assembly.
_MUCH_TIMED = 0.5
_OPAQUE = (
    "the engine compiles most of the model as one layer, so nothing is known of its parts: only "
    "whole-model placements are compared"
)


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
        found: dict[str, float] = {}
        for number, unit in enumerate(self.units):
            share = self.plain.unit_ms.get(number, 0.0) / (total or 1.0)
            scheme = unit.scheme or unit.borderless
            names = scheme.nodes(unit.content) if scheme is not None else ()
            found |= dict.fromkeys(names, share / max(1, len(names)))
        return found

    def by_unit(self, costs: ObservedCosts, state: State) -> ObservedCosts:
        """Return what a choice was seen to cost, by units instead of groups."""
        of_units = {number: costs.unit_ms[unit.group] for number, unit in enumerate(self.units)
                    if unit.group in costs.unit_ms}  # fmt: skip
        rest_ms = sum(costs.unit_ms.values()) - sum(of_units.values())
        return replace(
            costs,
            quantized=self.choices.units(state),
            otherwise=self.choices.otherwise(state),
            unit_ms=of_units,
            rest_ms=costs.rest_ms + rest_ms,
        )

    @property
    def stamp(self) -> str:
        """What the numbers of units mean: another set of them has another one."""
        meant = []
        for unit in self.units:
            own = unit.scheme.name if unit.scheme is not None else ""
            more = (unit.borderless.name,) if unit.borderless is not None else ()
            meant.append((unit.group, own, *more))
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
        groups = self.cache.groups or ()
        compiled = {n for n, unit in enumerate(units.units) if groups[unit.group].part}
        seen = look_at(index, layers, units.of_node, quantized, otherwise, weights, compiled)
        self.cache.keep_seen(space.key(state), seen, units.stamp)

    def will_measure(self, trial: Trial) -> None:
        """Write down what is predicted of the candidates, if the strategy does that."""
        if not isinstance(self.strategy, AssemblySearch):
            return
        known, reference = self.strategy.predictions, trial.reference
        names = {state: f"{self.space.key(state)} over {self.space.key(reference)}"
                 for state in trial.candidates if (reference, state) in known}  # fmt: skip
        self.cache.keep_predictions({names[state]: known[reference, state] for state in names})

    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        """Answer a trial; the strategy knows before where the time of its candidates goes."""
        for state in trial.candidates:
            seen = self.cache.seen_in(self.space.key(state), self.units.stamp)
            if seen is not None:
                self.strategy.observe(state, seen)
        self.strategy.tell(trial, scores)
        self.cache.keep_batches(self.strategy.batches)


def subgraph_problem(run: TuningRun, baseline: Baseline, calibration: Calibration) -> SearchProblem:
    """Profile the subgraphs that the engine fuses, and put together the cheapest assembly."""
    request, planner, grouping = run.request, calibration.planner, calibration.grouping
    layers = request.config.graph_json
    told_by = sha256_of(Path(layers)) if layers is not None else ""
    cache = SubgraphCache(run.folder / names.SUBGRAPH_CACHE, run.header, told_by)
    base, done = baseline.base, Preparation()
    try:
        dims = {name: dims_of(value) for name, value in base.index.value.items()}
        ranges = _shape_ranges(run, base)
        samples = run.provider.evaluation_samples()
        with static_shapes(base, run.runner, run.provider.shapes, samples) as index:
            groups = find_engine_groups(run, planner.index, baseline.file, cache)
            done = replace(done, files=layer_files(run))
            is_slow = takes_long(cache.keep_build_s(baseline.build_s))
            may = {
                form: {n for group in grouping.groups if group.form is form for n in group.nodes}
                for form in Form
            }
            subgraphs = find_subgraphs(index, groups, planner, grouping.ruled, may, few=is_slow)
            profiler = SubgraphProfiler(
                run, cache, calibration.inserter, planner, index, dims, ranges
            )
            if is_slow and tells_in_place(request):
                TimesInPlace(profiler).find(subgraphs, grouping.ruled)
            most = most_assemblies(request, is_slow=is_slow)
            timed = _worth_timing(subgraphs, cache) if cache.whole_models.in_place else subgraphs
            stopped = profiler.profile_all(timed, most, measure_float=not is_slow)
            _share(run, profiler)
            done = replace(
                done,
                benchmarks=profiler.counts.benchmarks,
                failed=profiler.counts.failed,
                stopped=stopped,
            )
            found = make_units(subgraphs, cache.subgraphs, planner)
        choices = make_choices(found, subgraphs, cache.subgraphs, planner, grouping.ruled)
        units = Units(groups, found, choices, _float_times(found, cache))
        done = replace(done, subgraphs=_counts(subgraphs, units, cache))
        if not units.units and subgraphs:
            done = replace(done, why_nothing=_why_no_unit(subgraphs, cache))
            if any(cache.subgraphs.get(subgraph.key) for subgraph in subgraphs):
                return _problem_without_subgraphs(run, calibration, done)
        share = _timed_share(subgraphs, cache)
        return _assembly_problem(run, calibration, cache, units, done, share, is_slow=is_slow)
    except KeyboardInterrupt:
        space = Space(planner, (), {})
        done = replace(done, stopped=INTERRUPTED)
        return SearchProblem(space, make_strategy(SearchTask(space)), {}, done)


def _share(run: TuningRun, profiler: SubgraphProfiler) -> None:
    """Let runs of other models know the subgraphs that this one has timed."""
    folder = run.request.config.cache_dir
    if folder is None or profiler.ranges or not profiler.added:
        return
    conditions = subgraph_conditions(run.header)

    def keep(content: CacheContent) -> None:
        for each in profiler.added:
            content.add_subgraph(StoredSubgraph(conditions, each))

    add_to_folder(Path(folder), keep)


def _assembly_problem(
    run: TuningRun,
    calibration: Calibration,
    cache: SubgraphCache,
    units: Units,
    done: Preparation,
    timed: float,
    *,
    is_slow: bool,
) -> SearchProblem:
    """The cheapest assembly, what it is compared with, and how it may be improved."""
    config, choices, inserter = run.request.config, units.choices, calibration.inserter
    space = Space(calibration.planner, choices.groups, units.shares)
    costs = costs_of(units.units, units.groups, inserter.base.index, units.plain)
    in_place: dict[State, ObservedCosts] = {}
    for seen in cache.whole_models.in_place:
        whole = space.closed(space.nearest(seen.placement(calibration.planner)))
        in_place[whole] = units.by_unit(seen.costs, whole)
    known_costs = refined(costs, [*in_place.values(), units.plain])

    def closed(state: State) -> State:
        return choices.units(space.closed(choices.state(state)))

    raw = choices.state(assemble_closed(known_costs, closed))
    seeds = {RAW: raw}
    if config.incremental_validation:
        seeds |= _seeds(run, calibration, space, is_slow=is_slow)
    seeds = _likeliest_first(seeds, timed)
    _write_raw(run, inserter, space.placement(raw))
    alike: dict[int, set[int]] = {}
    for number, unit in enumerate(units.units):
        if not unit.is_passthrough:
            numbers = (number, number + len(units.units))
            found = {n for n in numbers if choices.of_unit[n]}
            alike.setdefault(unit.subgraph, set()).update(found)
    limits = Limits(benchmarks=most_assemblies(run.request, is_slow=is_slow), workers=len(run.pool))
    task = SubgraphTask(
        space, seeds, limits, config.seed, choices=choices, costs=costs,
        alike=[frozenset(part) for part in alike.values()],
        incremental=config.incremental_validation, frugal=is_slow, told=_told(seeds, cache),
        refused=frozenset(cache.whole_models.refused),
    )  # fmt: skip
    strategy = make_strategy(task, config.strategy)
    strategy.observe(frozenset(), units.plain)
    for whole, seen_there in reversed(in_place.items()):  # the last is the last word
        strategy.observe(whole, seen_there)
    told = f"{len(choices.units(raw))} of {len(units.units)} groups quantized"
    run.reporter.tell("assembly", told)
    if isinstance(strategy, AssemblySearch) and strategy.is_opaque:
        run.reporter.tell("assembly", _OPAQUE)
    return AssemblyProblem(
        space=space, strategy=strategy, seeds=seeds, preparation=done, units=units,
        inserter=inserter, cache=cache,
    )  # fmt: skip


def _told(seeds: Mapping[str, State], cache: SubgraphCache) -> frozenset[State]:
    """Return the seeds whose own layers the costs were taken from."""
    if all(times.how != IN_PLACE for times in cache.subgraphs.values()):
        return frozenset()
    return frozenset(seeds[name] for name in (RULES, STATIC_BLANKETS[0]) if name in seeds)


def _worth_timing(subgraphs: Sequence[Subgraph], cache: SubgraphCache) -> list[Subgraph]:
    """Return the subgraphs that whole models told of, and others that take enough of the time."""
    least_ms = _LEAST_SHARE * cache.spent_ms(range(len(cache.groups or ())))
    return [
        each
        for each in subgraphs
        if each.key in cache.subgraphs or cache.spent_ms(each.groups) >= least_ms
    ]


def _timed_share(subgraphs: Sequence[Subgraph], cache: SubgraphCache) -> float:
    """The part of the latency of what can be quantized that is in subgraphs that were timed."""
    spent = {each.key: cache.spent_ms(each.groups) for each in subgraphs}
    known = sum(ms for key, ms in spent.items() if key in cache.subgraphs)
    return known / sum(spent.values()) if any(spent.values()) else 1.0


def takes_long(build_s: float) -> bool:
    """Whether a model takes so long to build that builds are saved."""
    return build_s > _SLOW_BUILD_S


def tells_in_place(request: TuneRequest) -> bool:
    """Whether whole models may tell what subgraphs take, where builds take long."""
    return request.config.incremental_validation and request.dialect.writes_either


def most_assemblies(request: TuneRequest, *, is_slow: bool) -> int:
    """How many whole models may be tried."""
    most, usual = request.config.max_benchmarks, request.preset.assemblies
    if most is not None:
        return most
    return usual // 2 + 1 if is_slow else usual


def _likeliest_first(seeds: Mapping[str, State], timed: float) -> dict[str, State]:
    """The assemblies in the order in which they are tried, should time not allow all.

    Args:
        seeds: The assemblies, by name.
        timed: The part of the latency of what can be quantized that is in subgraphs that were
            timed. With the larger part unknown, the rules know more.
    """
    first = (RAW, RULES) if timed >= _MUCH_TIMED else (RULES, RAW)
    return {name: seeds[name] for name in (*first, *seeds) if name in seeds}


def _problem_without_subgraphs(
    run: TuningRun, calibration: Calibration, done: Preparation
) -> SearchProblem:
    """Whole models are tried all the same: the engine may take in them what it can't alone."""
    _logger.warning("%s; whole models are tried without them", done.why_nothing)
    space = Space(calibration.planner, calibration.grouping.groups, {})
    seeds = _seeds(run, calibration, space, is_slow=False)
    most = run.request.config.max_benchmarks
    most = len(seeds) if most is None else min(most, len(seeds))
    limits = Limits(benchmarks=most, workers=len(run.pool))
    _write_raw(run, calibration.inserter, Placement())
    task = SearchTask(space, seeds, limits, run.request.config.seed)
    return SearchProblem(space, make_strategy(task), seeds, done)


def _seeds(
    run: TuningRun, calibration: Calibration, space: Space, *, is_slow: bool
) -> dict[str, State]:
    """The assemblies to compare with; they quantize ops as a whole, never their weights alone."""
    grouping = calibration.grouping
    found = seeds_of(space, run.given, grouping, _prior(run, grouping))
    weights = space.in_form(Form.WEIGHTS)
    last = LESSER_BLANKETS if is_slow else ()
    names = (*(name for name in found if name not in LESSER_BLANKETS), *last)
    return {name: found[name] - weights for name in names if name in found}


def _write_raw(run: TuningRun, inserter: Inserter, placement: Placement) -> None:
    """What the subgraphs alone lead to, before anything of it was tried on the whole model."""
    path, base = run.folder / names.RAW, inserter.base
    if placement:
        save_model(inserter.model(placement), path, force=True)
    elif AS_GIVEN in run.given:  # the model as given is not what this is about
        save_model(base.load(base.whole()), path, force=True)
    else:
        run.folder.copy_model(run.request.file, path)


def _shape_ranges(run: TuningRun, base: PreparedModel) -> dict[str, Shapes]:
    """Shapes of all tensors at the smallest and the largest inputs, if they were given."""
    config, model = run.request.config, base.index.model
    found: dict[str, Shapes] = {}
    for label, asked in ((MIN, config.min_shapes), (MAX, config.max_shapes)):
        if (request := request_of(asked)) is not None:
            shapes = resolve_shapes(model, request)
            samples = random_inputs(base.index, 1, replace(request, shapes=shapes, dims={}))
            with static_shapes(base, run.runner, shapes, samples) as index:
                sizes = {tensor: index.shape(tensor) for tensor in index.value}
            found[label] = {
                tensor: tuple(dim or 0 for dim in dims)
                for tensor, dims in sizes.items()
                if dims is not None and None not in dims
            }
    return found


def _float_times(units: Sequence[QuantizableGroup], cache: SubgraphCache) -> ObservedCosts:
    """The float model's times by unit.

    Of a layer that several groups share, each has what it takes alone, as far as the layer's time
    goes; what is left is the rest's.
    """
    assert cache.groups is not None
    shared: dict[str, float] = {}
    alone: dict[str, float] = {}
    for _, ms, part in cache.groups:
        shared[part] = shared.get(part, 0.0) + ms
    for unit in units:
        part = cache.groups[unit.group].part
        alone[part] = alone.get(part, 0.0) + unit.as_float.inside_ms
    of_units = {}
    for number, unit in enumerate(units):
        group, own_ms = cache.groups[unit.group], unit.as_float.inside_ms
        scale = min(1.0, shared[group.part] / alone[group.part]) if alone[group.part] else 0.0
        of_units[number] = own_ms * scale if group.part else group.ms
    return ObservedCosts(frozenset(), of_units, sum(shared.values()) - sum(of_units.values()))


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
