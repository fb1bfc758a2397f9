"""The graph of a report as inline SVG, and what its script needs to know of the nodes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from qdqtune.records._printable import printable
from qdqtune.records._report import (
    BORDER,
    DYNAMIC,
    FLOAT,
    QUANTIZED,
    UNFUSED,
    WEIGHTS,
    EdgeView,
    GraphView,
    LayerChange,
    Point,
)
from qdqtune.report._charts import join

_SLOT, _ROW = 112.0, 44.0
_NODE_WIDTH, _NODE_HEIGHT = 96.0, 24.0
_HALO = 7.0
_LONGEST_LABEL = 13
_MARGIN = 16.0

CLASSES = {
    FLOAT: "f", QUANTIZED: "q", DYNAMIC: "d", UNFUSED: "u", WEIGHTS: "w", BORDER: "b",
}  # fmt: skip
"""The CSS class of each form."""


def graph_svg(graph: GraphView, prefix: str) -> Markup:
    """Draw a graph: areas, then edges, then nodes.

    Args:
        graph: The graph.
        prefix: Begins the ids of nodes, to tell graphs on one page apart.
    """
    width, height = graph.width * _SLOT + 2 * _MARGIN, graph.height * _ROW + 2 * _MARGIN
    nodes = join(
        Markup(
            '<g id="{}n{}" class="n {}" transform="translate({:.0f} {:.0f})">'
            '<rect width="96" height="24"/><text x="48" y="16">{}</text></g>'
        ).format(
            prefix, number, CLASSES.get(node.form, "f"),
            node.place[0] * _SLOT - _NODE_WIDTH / 2, node.place[1] * _ROW - _NODE_HEIGHT / 2,
            _label(node.op_type),
        )
        for number, node in enumerate(graph.nodes)
    )  # fmt: skip
    return Markup(
        '<svg class="graph" id="{}graph" viewBox="{:.0f} {:.0f} {:.0f} {:.0f}" '
        'preserveAspectRatio="xMidYMid meet" role="img" aria-label="The graph">'
        '<g class="areas">{}</g><g class="edges">{}</g><g class="borders">{}</g>'
        '<path class="chosen" d=""/><g class="nodes">{}</g></svg>'
    ).format(
        prefix, -_MARGIN, -_MARGIN, width, height,
        _areas(graph), _edges(graph), _borders(graph.edges, graph), nodes,
    )  # fmt: skip


def graph_data(graph: GraphView, layers: Sequence[LayerChange]) -> dict[str, Any]:
    """Return what the script shows about nodes when they are clicked."""
    return {
        "forms": {kind: form or "model input or output" for form, kind in CLASSES.items()},
        "areas": [printable(area) for area in graph.areas],
        "reasons": [printable(reason) for reason in graph.reasons],
        "layers": [[len(row.nodes), row.before_ms, row.after_ms, row.precision] for row in layers],
        "nodes": [
            [
                printable(node.name), printable(node.op_type), node.shape, node.reason, node.area,
                node.layer, node.sqnr_db, node.nodes,
            ]
            for node in graph.nodes
        ],
        "edges": [[edge.source, edge.target] for edge in graph.edges],
    }  # fmt: skip


def _label(op_type: str) -> str:
    text = printable(op_type)
    return text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…"


def _pixels(points: Iterable[Point]) -> list[Point]:
    return [(x * _SLOT, y * _ROW) for x, y in points]


def _route(graph: GraphView, edge: EdgeView) -> list[Point]:
    """Return all points of an edge, from the lower border of a node to the upper of another."""
    start, end = graph.nodes[edge.source].place, graph.nodes[edge.target].place
    (first, *inside, last) = _pixels([start, *edge.bends, end])
    half = _NODE_HEIGHT / 2
    return [(first[0], first[1] + half), *inside, (last[0], last[1] - half)]


def _path(points: Sequence[Point]) -> str:
    """Return a smooth path that leaves and enters nodes vertically."""
    x, y = points[0]
    parts = [f"M{x:.0f} {y:.0f}"]
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        if abs(x - to_x) < 1.0:
            parts.append(f"V{to_y:.0f}")
        elif abs(y - to_y) < 1.0:
            parts.append(f"H{to_x:.0f}")
        else:
            middle = (y + to_y) / 2
            parts.append(f"C{x:.0f} {middle:.0f} {to_x:.0f} {middle:.0f} {to_x:.0f} {to_y:.0f}")
    return "".join(parts)


def _edges(graph: GraphView) -> Markup:
    """Return all edges, one path for each kind: thousands of elements would be slow to move."""
    paths: dict[str, list[str]] = {"ef": [], "eq": []}
    for edge in graph.edges:
        paths["eq" if edge.quantized else "ef"].append(_path(_route(graph, edge)))
    return join(
        Markup('<path class="{}" d="{}"/>').format(kind, "".join(found))
        for kind, found in paths.items()
        if found
    )


def _borders(edges: Sequence[EdgeView], graph: GraphView) -> Markup:
    """Return a mark where values are quantized (filled) or dequantized (open)."""
    found: dict[str, list[str]] = {"bq": [], "bd": []}
    for edge in edges:
        if edge.border:
            points = _route(graph, edge)
            x, y = points[-1] if edge.quantized else points[0]
            y += -5.0 if edge.quantized else 5.0
            kind = "bq" if edge.quantized else "bd"
            found[kind].append(f"M{x - 4:.0f} {y:.0f}l4 -4l4 4l-4 4z")
    return join(
        Markup('<path class="{}" d="{}"/>').format(kind, "".join(marks))
        for kind, marks in found.items()
        if marks
    )


def _areas(graph: GraphView) -> Markup:
    """Return the outline of each area: halos of its nodes, joined along its edges."""
    parts: dict[int, list[str]] = {}
    for node in graph.nodes:
        if node.area >= 0:
            x, y = node.place[0] * _SLOT, node.place[1] * _ROW
            width, height = _NODE_WIDTH + 2 * _HALO, _NODE_HEIGHT + 2 * _HALO
            parts.setdefault(node.area, []).append(
                f"M{x - width / 2:.0f} {y - height / 2:.0f}h{width:.0f}v{height:.0f}h{-width:.0f}z"
            )
    for edge in graph.edges:
        source, target = graph.nodes[edge.source], graph.nodes[edge.target]
        if source.area == target.area >= 0 and not edge.bends:
            (x, y), (to_x, to_y) = _pixels([source.place, target.place])
            half = _NODE_WIDTH / 2 + _HALO
            band = f"M{x - half:.0f} {y:.0f}h{2 * half:.0f}L{to_x + half:.0f} {to_y:.0f}"
            parts[source.area].append(f"{band}h{-2 * half:.0f}z")
    return join(
        Markup('<path class="ao" d="{0}"/><path class="ai" d="{0}"/>').format("".join(found))
        for _, found in sorted(parts.items())
    )
