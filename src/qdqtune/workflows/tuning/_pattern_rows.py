"""What a report says about patterns: the schemes tried for each, and why one was kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Placement
from qdqtune.records._report import LayerChange, PatternRow, SchemeRow
from qdqtune.search.patterns._insertion_points import InsertionPoint, RegionOutputInsertionPoint
from qdqtune.search.patterns._region_pattern import PatternView
from qdqtune.workflows.tuning._run_records import TriedScheme


def pattern_rows(
    schemes_tried: Iterable[tuple[PatternView, Sequence[TriedScheme]]],
    planner: QuantizationPlanner,
    placement: Placement,
    layers: Sequence[LayerChange],
) -> tuple[PatternRow, ...]:
    """Describe the patterns of a run, largest gain first.

    Args:
        schemes_tried: The patterns with the schemes tried for each.
        planner: Knows what a placement quantizes.
        placement: The result.
        layers: Where the engine's time goes before and after.
    """
    edges, quantized = planner.index.effective(placement), planner.quantized(placement)
    rows = [
        replace(
            _pattern_row(view, each, view.scheme_in(edges, quantized).hash, layers, planner.index),
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
) -> PatternRow:
    known = [each.scheme.latency_ms for each in tried if each.scheme.hash == chosen]
    best_ms = min(known, default=math.inf)
    own = sorted(view.nodes, key=lambda name: index.position[name])
    inside = [(layer, len(view.nodes.intersection(layer.nodes))) for layer in layers]
    # A layer across the border of a region counts by its nodes.
    parts = [(layer, count / len(layer.nodes)) for layer, count in inside if count]
    has_after = any(layer.after_ms is not None for layer, _ in parts)
    return PatternRow(
        tuple(index.node[name].op_type for name in own[: len(own) // view.regions]),
        view.regions,
        own[0],
        tuple(
            _scheme_row(
                each,
                each.scheme.hash == chosen,
                best_ms,
                tuple(_point_text(view, point, index) for point in each.scheme.points()),
            )
            for each in sorted(tried, key=lambda each: each.scheme.latency_ms)
        ),
        sum(layer.before_ms * part for layer, part in parts) if parts else None,
        sum((layer.after_ms or 0.0) * part for layer, part in parts) if has_after else None,
        title=view.title,
    )


def _point_text(view: PatternView, point: InsertionPoint, index: GraphIndex) -> str:
    """Name the tensor of a point in the first region, and the ops that read it quantized."""
    edges = [edge for edge in view.edges.get(point, ()) if not index.is_constant(edge.tensor)]
    if not edges:
        return str(point)
    tensors = ", ".join(sorted({edge.tensor for edge in edges}))
    if isinstance(point, RegionOutputInsertionPoint):
        return f"{tensors} after the region"
    readers = sorted({edge.node for edge in edges if edge.node}, key=index.position.__getitem__)
    return f"{tensors} into {', '.join(index.node[name].op_type for name in readers)}"


def _scheme_row(
    tried: TriedScheme, is_chosen: bool, best_ms: float, points: tuple[str, ...]
) -> SchemeRow:
    scheme, candidate = tried.scheme, tried.candidate
    latency_ms = None if scheme.error else scheme.latency_ms
    if is_chosen:
        reason = "kept: it is in the result"
    elif scheme.error:
        reason = f"dropped: {candidate.failure.splitlines()[0] if candidate.failure else 'failed'}"
    elif math.isfinite(best_ms):
        off = 100.0 * (scheme.latency_ms / best_ms - 1.0)
        slower = f"its fastest model is {off:.1f} % slower than the result"
        reason = f"dropped: {slower}" if off >= 0.05 else "dropped: no faster than the result"
    else:
        reason = "dropped"
    return SchemeRow(points, candidate.name, latency_ms, is_chosen, reason)
