"""Subgraph mode: the engine's fusion groups, their subgraphs profiled, the best assembly tried."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from qdqtune.autotune.search.placement_search import PlacementSearch
from qdqtune.autotune.search.space import Space, State
from qdqtune.autotune.search.strategy import Limits
from qdqtune.autotune.search.trial import Trial
from qdqtune.autotune.subgraphs.assembly import assemble_closed
from qdqtune.autotune.subgraphs.costs import ObservedCosts, costs_of
from qdqtune.autotune.subgraphs.distinct_subgraphs import Subgraph, find_subgraphs
from qdqtune.autotune.subgraphs.fusion_groups import FusionGroup
from qdqtune.autotune.subgraphs.observed_costs import look_at
from qdqtune.autotune.subgraphs.quantizable_groups import (
    Choices,
    QuantizableGroup,
    make_choices,
    make_units,
)
from qdqtune.autotune.subgraphs.validation import SubgraphSearch
from qdqtune.engines import registry
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.graph.atomic_files import sha256_of
from qdqtune.graph.dims import dims_of
from qdqtune.graph.disk_errors import writing
from qdqtune.graph.extraction import Dims
from qdqtune.graph.files import load_model, save_model
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.inputs import request_of
from qdqtune.records.measurement import LayerTime
from qdqtune.workflows.sample_provider import SampleProvider
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.float_type import written_type
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.layer_file import copy_log, write_layer_file
from qdqtune.workflows.tuning.layer_groups import find_groups
from qdqtune.workflows.tuning.preflight import AS_GIVEN, seeds_of
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.searching import Searching
from qdqtune.workflows.tuning.shape_ranges import MAX, MIN, shapes_inside
from qdqtune.workflows.tuning.sizing import all_sizes
from qdqtune.workflows.tuning.story import Story
from qdqtune.workflows.tuning.subgraph_cache import SubgraphCache
from qdqtune.workflows.tuning.subgraph_profiler import SubgraphProfiler
from qdqtune.workflows.tuning.subgraph_profiling import SubgraphProfiling
from qdqtune.workflows.tuning.time_budget import TimeBudget

_logger = logging.getLogger(__name__)

RAW = "raw"
NOT_TRIED = ("weighted ops", "weighted ops and what is between")
"""Whole-model choices of `seeds_of` that are not worth a build beside the assembly."""

# Where a model takes longer to build, builds are saved: what a subgraph costs as float is what it
# was seen to cost in the float model, and only gains that are worth a build are tried.
_SLOW_BUILD_S = 10.0


class SubgraphMode:
    """Finds what to choose from, and who does the choosing.

    Args:
        request: What was asked for.
        folder: Where everything goes.
        reporter: Who hears of it.
        story: What has happened, and is told on.
        engine: Runs and times.
        runner: Of the reference engine.
        provider: What the model is run on.
        feeds: The inputs that every model is timed on.
        inserter: Writes candidates.
        planner: What can be quantized.
        header: What measurements depend on.
        float_type: What the engine computes floats in, for the names of files.
        pace: What there is time for.
    """

    def __init__(
        self,
        request: TuneRequest,
        folder: RunFolder,
        reporter: ProgressReporter,
        story: Story,
        engine: Worker,
        runner: Worker,
        provider: SampleProvider,
        feeds: StoredFeeds,
        inserter: Inserter,
        planner: QuantizationPlanner,
        header: Mapping[str, Any],
        float_type: str,
        pace: TimeBudget,
    ) -> None:
        self._request = request
        self._folder = folder
        self._reporter = reporter
        self._story = story
        self._engine = engine
        self._runner = runner
        self._provider = provider
        self._feeds = feeds
        self._inserter = inserter
        self._planner = planner
        self._float_type = float_type
        self._pace = pace
        layers = request.config.graph_json
        told_by = sha256_of(Path(layers)) if layers is not None else ""
        self._cache = SubgraphCache(folder / names.SUBGRAPH_CACHE, header, told_by)
        self._groups: tuple[FusionGroup, ...] = ()
        self._units: list[QuantizableGroup] = []
        self._unit_of: dict[str, int] = {}
        self._plain = ObservedCosts(frozenset(), {})
        self._choices = Choices()

    def prepare(self, plain: Path, given: Mapping[str, Collection[str]]) -> Searching:
        """Find the groups, profile their subgraphs, and put together the cheapest assembly.

        Args:
            plain: The float model.
            given: Names of tensors that are quantized in a file that somebody made.
        """
        base, story = self._inserter.base, self._story
        may = {name for group in story.grouping.groups for name in group.nodes}
        dims: dict[str, Dims | None] = {
            name: dims_of(value) for name, value in base.index.value.items()
        }
        ranges = self._shape_ranges()
        with all_sizes(base, self._runner, self._provider) as index:
            self._groups = self._find_groups(plain)
            is_slow = self._is_slow_to_build
            subgraphs = find_subgraphs(
                index, self._groups, self._planner, story.grouping.ruled, may, few=is_slow
            )
            profiler = SubgraphProfiler(
                self._engine, self._inserter, self._planner, index, dims,
                self._folder / names.SUBGRAPHS, self._request.preset,
            )  # fmt: skip
            phase = SubgraphProfiling(
                profiler, self._cache, self._reporter, story, base, self._runner, self._provider,
                index, dims, ranges, self._pace,
                is_told_ranges=registry.entry(self._request.engine).takes_shape_ranges,
            )  # fmt: skip
            phase.run(subgraphs, measure_float=not is_slow)
            self._units = make_units(subgraphs, self._cache.subgraphs, self._planner)
        self._unit_of = {
            name: number
            for number, unit in enumerate(self._units)
            for name in self._groups[unit.group].nodes
        }
        self._choices = make_choices(
            self._units, subgraphs, self._cache.subgraphs, self._planner, story.grouping.ruled
        )
        self._plain = self._float_model()
        total = sum(self._plain.unit_ms.values()) + self._plain.rest_ms
        shares = {
            name: self._plain.unit_ms.get(number, 0.0) / len(unit.scheme.places) / (total or 1.0)
            for number, unit in enumerate(self._units)
            for name in unit.scheme.nodes(unit.content)
        }
        space = Space(self._planner, self._choices.groups, shares)
        story.subgraphs = {
            "groups": len(self._groups),
            "structural": self._cache.structural,
            "pieces": sum(subgraph.key in self._cache.subgraphs for subgraph in subgraphs),
            "all_pieces": len(subgraphs),
            "units": len(self._units),
        }
        if not self._units and subgraphs:
            story.why_nothing = self._why_no_unit(subgraphs)
            if any(self._cache.subgraphs.get(subgraph.key) for subgraph in subgraphs):
                return self._without_subgraphs(given)
        search, seeds = self._assemble(space, given)
        return Searching(
            space,
            search,
            seeds,
            lambda state, layers: self._saw_layers(space, state, layers),
            lambda trial: self._recall(space, search, trial),
            lambda: self._keep(search),
        )

    def _without_subgraphs(self, given: Mapping[str, Collection[str]]) -> Searching:
        """Whole models are tried all the same: the engine may take in them what it can't alone."""
        request, story = self._request, self._story
        _logger.warning("%s; whole models are tried without them", story.why_nothing)
        space = Space(self._planner, story.grouping.groups, {})
        found = seeds_of(space, given, story.grouping)
        seeds = {name: state for name, state in found.items() if name not in NOT_TRIED}
        most = request.config.max_benchmarks
        limits = Limits(benchmarks=len(seeds) if most is None else min(most, len(seeds)))
        self._write_raw(space, frozenset(), is_quantized=AS_GIVEN in given)
        return Searching(space, PlacementSearch(space, seeds, limits, request.config.seed), seeds)

    def _why_no_unit(self, subgraphs: Sequence[Subgraph]) -> str:
        found = (self._cache.subgraphs.get(subgraph.key) for subgraph in subgraphs)
        errors = [f.error for times in found if times is not None for f in times.forms if f.error]
        why = Counter(errors).most_common(1)[0][0].splitlines()[0] if errors else ""
        return f"no subgraph of it could be timed{': ' + why if why else ''}"

    def _saw_layers(self, space: Space, state: State, layers: Sequence[LayerTime]) -> None:
        """Look at where the time of a candidate goes, and write it down."""
        if not layers:
            return
        index = GraphIndex(self._inserter.model(space.placement(state)))
        real = space.closed(state)
        quantized, otherwise = self._choices.units(real), self._choices.otherwise(real)
        weights = [self._plain.unit_ms.get(n, 0.0) for n in range(len(self._units))]
        seen = look_at(index, layers, self._unit_of, quantized, otherwise, weights)
        self._cache.keep_seen(space.key(state), seen, self._stamp)

    def _recall(self, space: Space, search: SubgraphSearch, trial: Trial) -> None:
        """Let the search know where the time of a trial's candidates goes."""
        for state in trial.candidates:
            seen = self._cache.seen_in(space.key(state), self._stamp)
            if seen is not None:
                search.observe(state, seen)

    @property
    def _stamp(self) -> str:
        """What the numbers of units mean: another set of them has another one."""
        meant = [(unit.group, unit.scheme.name) for unit in self._units]
        return hashlib.blake2b(repr(meant).encode(), digest_size=8).hexdigest()

    def _keep(self, search: SubgraphSearch) -> None:
        """Write down what was tried so far."""
        self._story.batches = list(search.batches)
        self._cache.keep_batches(search.batches)

    def _find_groups(self, plain: Path) -> tuple[FusionGroup, ...]:
        """The engine's groups, or what an earlier run found."""
        cache, index = self._cache, self._planner.index
        if cache.groups is None or not self._is_whole(cache.groups):
            graph_json = self._request.config.graph_json
            told = None if graph_json is None else Path(graph_json)
            own = self._write_layers(plain) if told is None else None
            groups, times = find_groups(index, self._engine, plain, self._feeds, told, own)
            structural = sum(group.is_structural for group in groups)
            found = [(group.nodes, times[group.number]) for group in groups]
            cache.keep_groups(found, structural)
        assert cache.groups is not None
        self._note_layer_files()
        self._reporter.tell(
            "groups",
            f"{len(index.nodes)} ops in {len(cache.groups)} fusion groups, "
            f"{cache.structural} of them by structure",
        )
        return tuple(FusionGroup(n, nodes, ()) for n, (nodes, _) in enumerate(cache.groups))

    def _write_layers(self, plain: Path) -> Path | None:
        """The file with the engine's layers of the float model; None if it writes none."""
        request, folder = self._request, self._folder
        if not registry.entry(request.engine).writes_layers:
            return None
        if folder.converted.is_file():
            self._write_refused_layers(folder.converted)
        return self._write_layer_file(plain, self._float_type)

    def _write_refused_layers(self, converted: Path) -> None:
        """The same of the model in the float type that was wanted, if another one is tuned."""
        float_type = written_type(load_model(converted)).value
        if float_type != self._float_type:
            model = converted.with_name(f"{float_type}.onnx")  # so that its log has that name
            with writing(model):
                shutil.copyfile(converted, model)
            self._write_layer_file(model, float_type)

    def _write_layer_file(self, model: Path, float_type: str) -> Path | None:
        request, folder = self._request, self._folder
        layers = folder.layer_file(request.model, float_type)
        if not write_layer_file(self._engine, model, self._feeds, layers):
            return None
        log = folder / names.LOGS / request.engine / f"{model.stem}.log"
        copy_log(log, folder.build_log(request.model, float_type))
        return layers

    def _note_layer_files(self) -> None:
        """Tell of files with layers that this run, or an earlier one, has written."""
        model, folder = self._request.model, self._folder
        if self._request.config.graph_json is None:
            for name, file in (
                ("graph_json", folder.layer_file(model, self._float_type)),
                ("build_log", folder.build_log(model, self._float_type)),
            ):
                if file.is_file():
                    self._story.layer_files[name] = file.name

    def _is_whole(self, groups: Sequence[tuple[tuple[str, ...], float]]) -> bool:
        """Whether groups have every node of the model, once."""
        nodes = [name for group, _ in groups for name in group]
        known = self._planner.index.node
        return len(nodes) == len(known) and known.keys() == set(nodes)

    def _shape_ranges(self) -> dict[str, Mapping[str, tuple[int, ...]]]:
        """Shapes of all tensors at the smallest and the largest inputs, if they were given."""
        request, base = self._request, self._inserter.base
        asked = {MIN: request.config.min_shapes, MAX: request.config.max_shapes}
        return {
            label: shapes_inside(base, self._runner, request_of(each), base.index.value)
            for label, each in asked.items()
            if each is not None
        }

    @property
    def _is_slow_to_build(self) -> bool:
        """Whether builds, and not runs, are what takes time."""
        return self._cache.keep_build_s(self._story.build_s) > _SLOW_BUILD_S

    def _float_model(self) -> ObservedCosts:
        """The float model's times by unit."""
        assert self._cache.groups is not None
        times = [ms for _, ms in self._cache.groups]
        of_units = {number: times[unit.group] for number, unit in enumerate(self._units)}
        return ObservedCosts(frozenset(), of_units, sum(times) - sum(of_units.values()))

    def _assemble(
        self, space: Space, given: Mapping[str, Collection[str]]
    ) -> tuple[SubgraphSearch, dict[str, State]]:
        request, story, choices = self._request, self._story, self._choices
        costs = costs_of(self._units, self._groups, self._inserter.base.index, self._plain)

        def closed(units: State) -> State:
            return choices.units(space.closed(choices.state(units)))

        raw = choices.state(assemble_closed(costs, closed))
        others = seeds_of(space, given, story.grouping)
        seeds = {RAW: raw, **{n: s for n, s in others.items() if n not in NOT_TRIED}}
        if not request.config.incremental_validation:
            seeds = {RAW: raw}
        self._write_raw(space, raw, is_quantized=AS_GIVEN in given)
        alike: dict[int, set[int]] = {}
        for number, unit in enumerate(self._units):
            if not unit.is_passthrough:
                alike.setdefault(unit.subgraph, set()).add(number)
        most = request.config.max_benchmarks
        limits = Limits(benchmarks=request.preset.assemblies if most is None else most)
        search = SubgraphSearch(
            space, choices, costs, seeds, [frozenset(part) for part in alike.values()], limits,
            incremental=request.config.incremental_validation, frugal=self._is_slow_to_build,
        )  # fmt: skip
        search.observe(frozenset(), self._plain)
        self._reporter.tell(
            "assembly", f"{len(choices.units(raw))} of {len(self._units)} groups quantized"
        )
        return search, seeds

    def _write_raw(self, space: Space, raw: State, *, is_quantized: bool) -> None:
        """What the subgraphs alone lead to, before anything of it was tried on the whole model."""
        target = self._folder / names.RAW
        placement = space.placement(raw)
        if placement:
            save_model(self._inserter.model(placement), target, force=True)
        elif is_quantized:  # the model as given is not what this is about
            base = self._inserter.base
            save_model(base.load(base.whole()), target, force=True)
        else:
            self._folder.copy_model(self._request.file, target)
