"""Before the search: what can be quantized, whether the engine runs the model, latency shares."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from qdqtune.calibration._instrumentation import observe_shapes, unknown_tensors
from qdqtune.config import TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._reference_engine import advice_on
from qdqtune.engines._worker import FailureKind, StoredFeeds, Worker, WorkerFailure
from qdqtune.graph._atomic_files import copy_file
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import EngineError, OutputError, UsageError
from qdqtune.records._measurement import LayerTime, Measurement
from qdqtune.records._placement import Edge, Placement
from qdqtune.rules._order import draft_placement
from qdqtune.rules._placement_draft import Constraints
from qdqtune.search._prior import Prior
from qdqtune.search._space import Form, Group, Grouping, Space, State, group_ops
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.workflows._arguments import constraints_of
from qdqtune.workflows._sample_provider import SampleProvider
from qdqtune.workflows.tuning._time_budget import TimeBudget

_logger = logging.getLogger(__name__)

AS_GIVEN = "as given"
"""The seed with a quantized model's own placement."""
STATIC_BLANKETS = ("everything", "weighted ops", "weighted ops and what is between")
"""The seeds that tools without a search would write."""
ALL_DYNAMIC = "dynamic products"
"""The seed that makes every op dynamic that can be, and quantizes nothing else."""
DYNAMIC_UNFUSED = "dynamic products, sums unfused"
"""The same, with normalizations that the engine does not fuse with the sums before them."""
DYNAMIC_PRODUCTS = "dynamic products and rules"
"""Every op dynamic that can be, with the rules for all others."""
PATTERN_CACHE = "pattern cache"
"""The seed from another run's pattern cache."""

_OTHER_SIZES = (
    "`qdqtune bench` on it should say the same. If it has open dims, not every size may be "
    "possible: give others by --shapes or --dim."
)
_FOREIGN = (
    "Its Q/DQ may be written for another engine: take them off (`qdqtune strip`) and tune the "
    "float model; --qdq_baseline with this file tries the same tensors first."
)
_RUNS_FOR_ESTIMATE = 3
# Maximum number of names in a message.
_MOST_NAMES = 3
_IN_FLOAT32 = (
    "It can't be compared with what it would become. Make it float32 first, and tune that: "
    "`qdqtune convert --to fp32`."
)
_LEAST_FOR_OPENING_S = 30.0
# How much longer than the float model another form of it may take to build.
_TIMES_FLOAT = 20.0
# The share of the latency from which on whole models of dynamic ops are tried.
_WORTH_A_SEED = 0.1
# Ops between weighted ones that pass 8-bit values on at little cost.
_BETWEEN = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool"})


def find_choices(
    base: PreparedModel,
    dialect: Dialect,
    config: TuneConfig,
    provider: SampleProvider,
    worker: Worker | None = None,
    cache: PatternCache | None = None,
) -> tuple[QuantizationPlanner, Grouping]:
    """Find what can be quantized in a model, and group what belongs together.

    Args:
        base: The float model.
        dialect: The dialect, which determines the kernels.
        config: The quant type, and the filters, which apply to whole groups.
        provider: The input shapes.
        worker: A worker of the reference engine, for shapes that can't be inferred; without one
            they stay unknown.
        cache: Schemes that other runs found for patterns.

    Raises:
        UsageError: If no quantizable op matches the filters.
    """
    quant_type, filters = config.quant_type, config.filters
    node_filter, region_filter = config.node_filter, config.region_filter
    with at_shapes(base.index.model, provider.shapes):
        index = GraphIndex(base.index.model)
        if worker is not None and unknown_tensors(index):
            observe_shapes(base, worker, next(iter(provider.evaluation_samples())))
        planner = QuantizationPlanner(index, dialect, quant_type)
        constraints = constraints_of(filters, index)
        ruled = draft_placement(planner, quant_type, constraints).chosen
        grouping = replace(group_ops(index, planner, cache, config.regions), ruled=ruled)
    if filters:
        grouping = replace(grouping, groups=_allowed(grouping.groups, constraints))
    if node_filter:
        matches = _matcher(node_filter)
        chosen = [group for group in grouping.groups if any(map(matches, group.nodes))]
        grouping = replace(grouping, groups=tuple(chosen))
        _check_left(grouping, "No op that could be quantized matches the node filter.", node_filter)
    if region_filter:
        grouping = grouping.of_regions(_matcher(region_filter))
        nothing = "No region with a node that matches the node filter can be quantized."
        _check_left(grouping, nothing, region_filter)
    return planner, grouping


def _matcher(wildcards: Collection[str]) -> Callable[[str], object]:
    return re.compile("|".join(map(fnmatch.translate, wildcards))).match


def _check_left(grouping: Grouping, what: str, wildcards: Collection[str]) -> None:
    if not grouping.groups:
        raise UsageError(what, f"Its patterns are: {', '.join(wildcards)}.")


def _allowed(groups: Iterable[Group], constraints: Constraints) -> tuple[Group, ...]:
    """Return groups with a selected op, and without one that must stay float."""
    return tuple(
        group
        for group in groups
        if constraints.never.isdisjoint(group.nodes)
        and (constraints.only is None or not constraints.only.isdisjoint(group.nodes))
    )


def with_ranges(
    grouping: Grouping, planner: QuantizationPlanner, known: Callable[[str], bool]
) -> Grouping:
    """Remove groups that involve a tensor without a known range.

    Args:
        grouping: The groups.
        planner: Knows what each op needs to be quantized.
        known: Whether a tensor has a range, or is a constant.
    """
    kept, unknown, lost = [], set(), 0
    candidate_edges = planner.candidate_edges
    # Passthrough ops whose values nothing quantizes stay float, and were not observed.
    watched = {
        edge.tensor for edge in planner.index.effective(candidate_edges)
    } | candidate_edges.outputs
    for group in grouping.groups:
        if not group.form.needs_ranges:
            kept.append(group)
            continue
        touched = {tensor for name in group.nodes for tensor in planner.units[name].tensors}
        missing = {tensor for tensor in touched if not known(tensor)}
        unknown |= missing & watched
        lost += not missing.isdisjoint(watched)
        if not missing:
            kept.append(group)
    if unknown:
        shown = ", ".join(map(repr, sorted(unknown)[:_MOST_NAMES]))
        more = len(unknown) - _MOST_NAMES
        _logger.warning(
            "%d of %d choices are left out: no range is known of %s, which took infinite or "
            "undefined values, or none at all",
            lost, len(grouping.groups), shown + (f" and {more} more" if more > 0 else ""),
        )  # fmt: skip
    return replace(grouping, groups=tuple(kept))


def seeds_of(
    space: Space,
    given: Mapping[str, Placement],
    grouping: Grouping,
    prior: Prior | None = None,
) -> dict[str, State]:
    """Return the whole-model choices to start from.

    Args:
        space: The search space.
        given: What is quantized in existing Q/DQ files, by the name of the seed.
        grouping: Has the choices of the rules, and the best schemes of a pattern cache.
        prior: What such a cache knows of the choices; its suggestion comes first.
    """
    blankets = (space.everything, space.weighted(), space.of_ops(WEIGHTED_OPS | _BETWEEN))
    seeds = {
        **({PATTERN_CACHE: prior.state(space)} if prior is not None else {}),
        **dict(zip(STATIC_BLANKETS, blankets, strict=True)),
        "rules": frozenset(
            number
            for number in space.everything
            if grouping.ruled.issuperset(space.groups[number].nodes)
        ),
    }
    dynamic = space.in_form(Form.DYNAMIC)
    if sum(space.potential[number] for number in dynamic) >= _WORTH_A_SEED:
        seeds[ALL_DYNAMIC] = dynamic
        if unfused := space.in_form(Form.UNFUSED):
            seeds[DYNAMIC_UNFUSED] = dynamic | unfused
        seeds[DYNAMIC_PRODUCTS] = space.switched(seeds["rules"], dynamic)
    for name, placement in given.items():
        static = _like(space, _edges_on(space, placement.tensors), placement.tensors)
        seeds[name] = space.switched(static, _in_other_forms(space, placement))
        if not seeds[name]:
            _logger.warning("%s: nothing of what it quantizes can be quantized here", name)
    if prior is None and grouping.cached:
        seeds[PATTERN_CACHE] = _like(space, grouping.cached)
    return {name: state for name, state in seeds.items() if state}


def _in_other_forms(space: Space, placement: Placement) -> State:
    """Return the groups of ops that are dynamic or unfused in a placement."""
    names = {Form.DYNAMIC: space.planner.at_run_time(placement), Form.UNFUSED: placement.unfused}
    return frozenset(
        number
        for number in space.other_forms
        if names[space.groups[number].form].issuperset(space.groups[number].nodes)
    )


def _edges_on(space: Space, tensors: frozenset[str]) -> frozenset[Edge]:
    """Return the edges on these tensors, and on those that passthrough ops derive from them."""
    planner = space.planner
    known = tensors & planner.index.value.keys()
    edges = (edge for tensor in known for edge in planner.index.readers(tensor))
    return planner.shared.propagated(frozenset(edges))


def _like(space: Space, quantized: frozenset[Edge], written: frozenset[str] | None = None) -> State:
    """Return the groups whose ops read only values that are quantized there, and constants.

    Args:
        space: The search space.
        quantized: Who reads quantized values there.
        written: Tensors that are quantized there, if known: then an op without weights counts only
            if what its kernel writes is among them.
    """
    planner, index = space.planner, space.planner.index

    def is_like(name: str) -> bool:
        places = planner.units[name]
        own = [edge for edge in places.edges if edge.node == name]
        read = {edge for edge in own if edge in quantized or is_within(edge)}
        if not read or not all(edge in read or index.is_constant(edge.tensor) for edge in own):
            return False
        if written is None or name in planner.passthrough:
            return True
        return is_op(index.node[name], *WEIGHTED_OPS) or places.outputs <= written

    def is_within(edge: Edge) -> bool:
        """Whether a bias is added to a product there, which may be one Gemm in the file."""
        if written is None or edge.node is None:
            return False
        node, producer = index.node[edge.node], index.value[edge.tensor].producer()
        if producer is None or not (is_op(node, "Add") and is_op(producer, "MatMul")):
            return False
        name = producer.name or ""
        return index.reads_constant(node) and name in planner.units and is_like(name)

    return frozenset(
        number
        for number, group in enumerate(space.groups)
        if group.form.needs_ranges and all(map(is_like, group.nodes))
    )


def layers_told(worker: Worker, path: Path, feeds: StoredFeeds, runs: int) -> list[LayerTime]:
    """Return the layers that an engine reports for a model; none if it can't."""
    try:
        with worker.opened(path) as model:
            worker.feed(model, feeds)
            return worker.layers(model, runs)
    except WorkerFailure as failure:
        _logger.info("the engine does not report where its time goes: %s", failure)
        return []


def copy_log(log: Path, target: Path) -> None:
    """Copy an engine's log of a build, if there is one."""
    with contextlib.suppress(OSError, OutputError):
        copy_file(log, target)


def check_runs(
    worker: Worker,
    path: Path,
    feeds: StoredFeeds,
    *,
    is_quantized: bool = False,
    converted_from: str = "",
    most_s: float = math.inf,
) -> tuple[float, float]:
    """Make sure that the engine runs the original model at these sizes of open dims.

    The cleaned-up model may run at sizes at which the file itself does not.

    Args:
        worker: The engine.
        path: The model.
        feeds: Its inputs.
        is_quantized: Whether it has Q/DQ, which may be for another engine.
        converted_from: Its float type, if it is tuned in another one.
        most_s: Seconds that the budget leaves for opening it.

    Returns:
        Seconds that the engine took to build it, and milliseconds of its first run.

    Raises:
        EngineError: If it does not run.
    """
    open_s = min(worker.timeout_s, max(_LEAST_FOR_OPENING_S, most_s))
    run_s = min(open_s, EngineEntry.open_limit_s)  # it is built by then
    try:
        with worker.opened(path, timeout_s=open_s) as model:
            fed_s = worker.feed(model, feeds, timeout_s=open_s)
            (first_ms,) = worker.time(model, 1, timeout_s=run_s)
        return model.build_s + fed_s, first_ms
    except WorkerFailure as failure:
        if failure.kind is FailureKind.TIMEOUT and open_s < worker.timeout_s:
            raise EngineError(
                f"--budget is too short for this model: after {open_s:.0f} s the engine had not "
                "opened and run it once.",
                "Give a longer --budget, or none.",
            ) from None
        raise EngineError(
            f"The engine does not run the model as it is: {failure}",
            advice_on(
                failure,
                path,
                worker.engine,
                _FOREIGN if is_quantized else _IN_FLOAT32 if converted_from else _OTHER_SIZES,
            ),
        ) from None


def time_once(
    worker: Worker, path: Path, provider: SampleProvider, budget: TimeBudget
) -> Measurement:
    """Time the original model once, from which the budget predicts what a run takes.

    Args:
        worker: The engine; it is started here.
        path: The model.
        provider: Its inputs.
        budget: That of the run.
    """
    began_s = time.monotonic()
    feeds = next(iter(provider.evaluation_samples()))
    timed = worker.measure(path, feeds, blocks=1, runs=_RUNS_FOR_ESTIMATE, drop=1)
    if timed.error is None:
        is_real = registry.entry(worker.engine).measures
        budget.start_s = max(0.0, time.monotonic() - began_s - timed.build_s - timed.timing_s)
        budget.saw_baseline(timed.build_s, timed.latency_ms if is_real else 0.0)
        budget.evaluated = provider.evaluation_sample_count
    return timed


def build_limit_s(worker: Worker, build_s: float) -> float:
    """Return how long opening any other model may take before it counts as hung.

    Args:
        worker: The engine.
        build_s: Seconds that the float model took.
    """
    return min(worker.timeout_s, max(EngineEntry.open_limit_s, _TIMES_FLOAT * build_s))
