"""What the strategies of `tune` propose for a whole model, as schemes of its patterns."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from qdqtune.autotune._tuned_pattern import EdgeClosure, TunedPattern
from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.records._placement import Edge
from qdqtune.rules._order import draft_placement
from qdqtune.search._space import Space, State, group_ops
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import InsertionScheme
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import Limits, Score, SearchTask
from qdqtune.workflows.tuning._preflight import seeds_of

Schemes = Mapping[TunedPattern, InsertionScheme]
"""The scheme of each pattern that has one."""

# Latencies are measured one after the other, not side by side.
_RELATIVE_ERROR = 0.01
# A pattern has 30 schemes in the guides: the larger part of them is left for its own points.
_MOST_CANDIDATES = 12


def edges_of(schemes: Schemes) -> frozenset[Edge]:
    """Every edge that sees a quantized value."""
    return frozenset[Edge]().union(*(tuned.edges(each) for tuned, each in schemes.items()))


def whole_model_schemes(
    patterns: Collection[TunedPattern],
    closure: EdgeClosure,
    cache: PatternCache,
    seed: int,
    measured: Mapping[frozenset[Edge], float],
) -> Iterator[Schemes]:
    """Whole models to measure, each once, as the search of region mode asks for them.

    Args:
        patterns: The patterns of the regions; what is in none of them stays float.
        closure: What places come to in the dialect.
        cache: What is known of patterns.
        seed: Decides what chance decides.
        measured: Latencies by quantized edges, infinite for failures; those of the float model
            and of every model that was handed out before belong there.
    """
    planner = closure.planner
    ruled = draft_placement(planner, closure.quant_type).chosen
    grouping = replace(group_ops(planner.index, planner, cache), ruled=ruled)
    inside = {name for tuned in patterns for name in tuned.nodes}
    groups = [group for group in grouping.groups if inside.issuperset(group.nodes)]
    space = Space(planner, groups, estimated_shares(planner.index))
    limits = Limits(benchmarks=_MOST_CANDIDATES)
    seeds = seeds_of(space, {}, grouping)
    strategy = make_strategy(SearchTask(space, seeds, limits, seed))
    points = {tuned: [(p, tuned.edges(InsertionScheme.of([p]))) for p in tuned.points]
              for tuned in patterns}  # fmt: skip

    def schemes_of(state: State) -> Schemes:
        wanted = closure.kernels(planner.quantized(space.placement(state)))
        chosen = {
            tuned: InsertionScheme.of(point for point, edges in own if edges <= wanted)
            for tuned, own in points.items()
        }
        return {tuned: scheme for tuned, scheme in chosen.items() if not scheme.is_empty}

    for trial in strategy.trials():
        reference_ms = measured[edges_of(schemes_of(trial.reference))]
        scores = []
        for state in trial.candidates:
            schemes = schemes_of(state)
            edges = edges_of(schemes)
            if edges not in measured:
                yield schemes
            latency_ms = measured.get(edges, math.inf)
            scores.append(
                Score(math.log(reference_ms / latency_ms), _RELATIVE_ERROR)
                if math.isfinite(latency_ms)
                else Score.failed("it could not be measured")
            )
        strategy.tell(trial, scores)
