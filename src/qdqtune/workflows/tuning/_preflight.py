"""Before the search: what can be chosen, whether the engine runs the model, where its time goes."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from qdqtune.calibration._instrumentation import observe_shapes, unknown_tensors
from qdqtune.config import TuneConfig
from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._reference_engine import advice_on
from qdqtune.engines._worker import FailureKind, StoredFeeds, Worker, WorkerFailure
from qdqtune.graph._atomic_files import copy_file
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import EngineError, OutputError, UsageError
from qdqtune.records._measurement import LayerTime
from qdqtune.records._placement import Edge
from qdqtune.rules._order import draft_placement
from qdqtune.rules._placement_draft import Constraints
from qdqtune.search._space import Form, Group, Grouping, Space, State, group_ops
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.workflows._arguments import constraints_of
from qdqtune.workflows._sample_provider import SampleProvider

_logger = logging.getLogger(__name__)

AS_GIVEN = "as given"
"""The seed that a quantized model is for its own tuning."""
ALL_DYNAMIC = "dynamic products"
"""The seed that quantizes at run time whatever can be, and nothing else."""
DYNAMIC_PRODUCTS = "dynamic products and rules"
"""The same, with the rules for all other ops."""
PATTERN_CACHE = "pattern cache"
"""The seed that another run's pattern cache leads to."""

_OTHER_SIZES = (
    "`qdqtune bench` on it should say the same. If it has open dims, not every size may be "
    "possible: give others by --shapes or --dim."
)
_FOREIGN = (
    "Its Q/DQ may be written for another engine: take them off (`qdqtune strip`) and tune the "
    "float model; --qdq_baseline with this file tries the same tensors first."
)
# How many names a message has before it only counts.
_MOST_NAMES = 3
_IN_FLOAT32 = (
    "It can't be compared with what it would become. Make it float32 first, and tune that: "
    "`qdqtune convert --to fp32`."
)
_NOTHING: State = frozenset()
_LEAST_FOR_OPENING_S = 30.0
# How much longer than the float model another form of it may take to build.
_TIMES_FLOAT = 20.0
# The part of the latency that dynamic ops must have for whole models of them to be tried.
_WORTH_A_SEED = 0.1
# Ops between weighted ones that pass eight bits on at little cost.
_BETWEEN = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool"})


def find_choices(
    base: PreparedModel,
    dialect: Dialect,
    config: TuneConfig,
    provider: SampleProvider,
    worker: Worker | None = None,
    cache: PatternCache | None = None,
) -> tuple[QuantizationPlanner, Grouping]:
    """What can be quantized in a model, and which of it belongs together.

    Args:
        base: The float model.
        dialect: Whose kernels.
        config: To what, and the filters: groups are taken or left whole.
        provider: The input shapes.
        worker: Of the reference engine, for shapes that can't be inferred; without one they stay
            unknown.
        cache: What other runs found of patterns.

    Raises:
        UsageError: If nothing that could be quantized matches.
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
        grouping = replace(group_ops(index, planner, cache), ruled=ruled)
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
    """The groups in which nothing has to stay float, and something was asked for."""
    return tuple(
        group
        for group in groups
        if constraints.never.isdisjoint(group.nodes)
        and (constraints.only is None or not constraints.only.isdisjoint(group.nodes))
    )


def with_ranges(
    grouping: Grouping, planner: QuantizationPlanner, known: Callable[[str], bool]
) -> Grouping:
    """The choices without those that touch a tensor of which no range is known.

    Args:
        grouping: The choices.
        planner: What each op needs.
        known: Whether a tensor has a range, or is a constant.
    """
    kept, unknown, lost = [], set(), 0
    candidate_edges = planner.candidate_edges
    # What only moves values that nothing quantizes is never quantized: it was not looked at.
    watched = {
        edge.tensor for edge in planner.index.effective(candidate_edges)
    } | candidate_edges.outputs
    for group in grouping.groups:
        if group.form is Form.DYNAMIC:
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
    space: Space, given: Mapping[str, Collection[str]], grouping: Grouping
) -> dict[str, State]:
    """Whole-model choices to begin with.

    Args:
        space: The choices.
        given: Names of tensors that are quantized in a file that somebody made, by what to call it.
        grouping: What rules and a pattern cache would quantize.
    """
    seeds = {
        "everything": space.everything,
        "weighted ops": space.weighted(),
        "weighted ops and what is between": space.of_ops(WEIGHTED_OPS | _BETWEEN),
        "rules": frozenset(
            number
            for number in space.everything
            if grouping.ruled.issuperset(space.groups[number].nodes)
        ),
    }
    at_stake = sum(space.potential[number] for number in space.dynamic)
    if at_stake >= _WORTH_A_SEED:
        seeds[ALL_DYNAMIC] = space.dynamic
        seeds[DYNAMIC_PRODUCTS] = space.switched(seeds["rules"], space.dynamic)
    for name, tensors in given.items():
        seeds[name] = _like(space, _edges_on(space, frozenset(tensors)))
        if not seeds[name]:
            _logger.warning("%s: nothing of what it quantizes can be quantized here", name)
    cached = grouping.cached
    seeds[PATTERN_CACHE] = _like(space, cached) if cached else _NOTHING
    return {name: state for name, state in seeds.items() if state}


def _edges_on(space: Space, tensors: frozenset[str]) -> frozenset[Edge]:
    """Who reads these tensors, or what ops move from them."""
    planner = space.planner
    known = tensors & planner.index.value.keys()
    edges = (edge for tensor in known for edge in planner.index.readers(tensor))
    return planner.shared.propagated(frozenset(edges))


def _like(space: Space, quantized: frozenset[Edge]) -> State:
    """The groups whose ops read nothing but what is quantized elsewhere, and constants."""
    planner = space.planner
    return frozenset(
        number
        for number, group in enumerate(space.groups)
        if group.form is not Form.DYNAMIC
        and all(
            edge in quantized or planner.index.is_constant(edge.tensor)
            for name in group.nodes
            for edge in planner.units[name].edges
            if edge.node == name
        )
    )


def layers_told(worker: Worker, path: Path, feeds: StoredFeeds, runs: int) -> list[LayerTime]:
    """The layers that an engine runs a model as; none if it can't tell."""
    try:
        with worker.opened(path) as model:
            worker.feed(model, feeds)
            return worker.layers(model, runs)
    except WorkerFailure as failure:
        _logger.info("the engine does not report where its time goes: %s", failure)
        return []


def copy_log(log: Path, target: Path) -> None:
    """Keep what an engine said while it built a model, if it said something."""
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
    """Make sure that the engine runs the model as it was given, at these sizes of open dims.

    Cleaned up, it may run at sizes at which the file itself does not.

    Args:
        worker: The engine.
        path: The model.
        feeds: What it is run on.
        is_quantized: Whether it has Q/DQ, which may be those of another engine.
        converted_from: The float type that it has and is not tuned in, if there is such.
        most_s: What the budget leaves for opening it.

    Returns:
        Seconds that the engine took to build it, and milliseconds of its first run.

    Raises:
        EngineError: If it doesn't.
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


def build_limit_s(worker: Worker, build_s: float) -> float:
    """How long any other model may take to be opened before that counts as a hang.

    Args:
        worker: The engine.
        build_s: Seconds that the float model took.
    """
    return min(worker.timeout_s, max(EngineEntry.open_limit_s, _TIMES_FLOAT * build_s))
