"""What a report says about patterns: the schemes tried for each, and why one was kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Placement
from qdqtune.records._report import LayerChange, PatternRow, SchemeRow
from qdqtune.search.patterns._insertion_points import InsertionPoint, RegionOutputInsertionPoint
from qdqtune.search.patterns._region_pattern import PatternView
from qdqtune.workflows.tuning._run_records import TriedScheme, effective_units

# A ratio that is not shown as 0.0 %.
_NOTICED = 1.0005


def pattern_rows(
    schemes_tried: Iterable[tuple[PatternView, Sequence[TriedScheme]]],
    planner: QuantizationPlanner,
    placement: Placement,
    layers: Sequence[LayerChange],
    inaccurate: Set[str] = frozenset(),
) -> tuple[PatternRow, ...]:
    """Describe the patterns of a run, largest gain first.

    Args:
        schemes_tried: The patterns with the schemes tried for each.
        planner: Knows what a placement quantizes.
        placement: The result.
        layers: Where the engine's time goes before and after.
        inaccurate: Ids of candidates that are not accurate enough.
    """
    edges = planner.index.effective(placement)
    kernels = {name for name, unit in effective_units(planner).items() if unit <= edges}
    rows = [
        replace(
            _pattern_row(
                view, each, view.scheme_in(edges, kernels).hash, layers, planner.index, inaccurate
            ),
            dynamic=len(view.nodes.intersection(placement.dynamic)),
        )
        for view, each in schemes_tried
    ]
    return tuple(sorted(rows, key=lambda row: (row.after_ms or 0.0) - (row.before_ms or 0.0)))


def _pattern_row(
    view: PatternView,
    tried: Sequence[TriedScheme],
    chosen: str,
    layers: Sequence[LayerChange],
    index: GraphIndex,
    inaccurate: Set[str],
) -> PatternRow:
    best = next((each for each in tried if each.scheme.hash == chosen), None)
    own = sorted(view.nodes, key=lambda name: index.position[name])
    inside = [(layer, len(view.nodes.intersection(layer.nodes))) for layer in layers]
    # A layer across the border of a region counts by its nodes.
    parts = [(layer, count / len(layer.nodes)) for layer, count in inside if count]
    has_after = any(layer.after_ms is not None for layer, _ in parts)
    schemes = [
        _scheme_row(
            each,
            each.scheme.hash == chosen,
            best,
            inaccurate,
            tuple(_point_text(view, point, index) for point in each.scheme.points()),
        )
        for each in tried
    ]
    return PatternRow(
        tuple(index.node[name].op_type for name in own[: len(own) // view.regions]),
        view.regions,
        own[0],
        tuple(
            sorted(schemes, key=lambda row: math.inf if row.latency_ms is None else row.latency_ms)
        ),
        sum(layer.before_ms * part for layer, part in parts) if parts else None,
        sum((layer.after_ms or 0.0) * part for layer, part in parts) if has_after else None,
        title=view.title,
    )


def _point_text(view: PatternView, point: InsertionPoint, index: GraphIndex) -> str:
    """Name the tensor of a point in the first region, and the ops that read it quantized."""
    every = view.edges[point]
    edges = [edge for edge in every if not index.is_constant(edge.tensor)] or every
    tensors = ", ".join(sorted({edge.tensor for edge in edges}))
    if isinstance(point, RegionOutputInsertionPoint):
        return f"{tensors} after the region"
    readers = sorted({edge.node for edge in edges if edge.node}, key=index.position.__getitem__)
    return f"{tensors} into {', '.join(index.node[name].op_type for name in readers)}"


def _scheme_row(
    tried: TriedScheme,
    is_chosen: bool,
    best: TriedScheme | None,
    inaccurate: Set[str],
    points: tuple[str, ...],
) -> SchemeRow:
    scheme, candidate = tried.scheme, tried.candidate
    latency_ms = None if scheme.error else scheme.latency_ms
    if is_chosen:
        reason = "kept: it is in the result"
    elif scheme.error:
        reason = f"dropped: {candidate.failure.splitlines()[0] if candidate.failure else 'failed'}"
    elif best is None:
        reason = "dropped: the result has a scheme that no candidate has"
    else:
        # Records keep no scheme as faster than the best: here it counts as it was measured.
        latency_ms = best.scheme.latency_ms * math.exp(best.candidate.gain - candidate.gain)
        reason = (
            f"dropped: {_why(latency_ms / best.scheme.latency_ms, candidate.name in inaccurate)}"
        )
    return SchemeRow(points, candidate.name, latency_ms, is_chosen, reason)


def _why(ratio: float, is_inaccurate: bool) -> str:
    """Say why a scheme was dropped whose fastest model takes so many times as long."""
    if ratio >= _NOTICED:
        return f"its fastest model is {100.0 * (ratio - 1.0):.1f} % slower than the result"
    if ratio > 1.0 / _NOTICED:
        return "no faster than the result"
    faster = f"its fastest model was measured {100.0 * (1.0 / ratio - 1.0):.1f} % faster"
    return f"{faster}, but is not accurate enough" if is_inaccurate else f"{faster}, but not chosen"
