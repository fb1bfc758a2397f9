"""Insertion points in one model, and the placement that they add up to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.graph.index import GraphIndex
from qdqtune.records.placement import Edge, Placement

_FOREIGN = "Was it resolved in another model?"


@dataclass(frozen=True)
class ResolvedInsertionPoint:
    """An insertion point in one model.

    Attributes:
        tensor_name: The tensor.
        node_index: Position in the index of the node that reads it; None for all readers.
        input_index: The input of that node.
    """

    tensor_name: str
    node_index: int | None = None
    input_index: int | None = None


def to_placement(index: GraphIndex, resolved: Iterable[ResolvedInsertionPoint]) -> Placement:
    """Return the placement that quantizes exactly these points.

    Raises:
        InvalidSchemeError: If the model has no such point.
    """
    edges: set[Edge] = set()
    outputs: set[str] = set()
    for point in resolved:
        if point.node_index is not None:
            edges.add(_edge(index, point))
        elif point.tensor_name not in index.value:
            raise InvalidSchemeError(f"{point}: the model has no such tensor.", _FOREIGN)
        elif index.is_constant(point.tensor_name):  # no node produces it, so its readers are meant
            edges.update(edge for edge in index.readers(point.tensor_name) if edge.node)
        else:
            outputs.add(point.tensor_name)
    return Placement(frozenset(edges), frozenset(outputs))


def merge_resolved_insertion_points(
    graph: GraphIndex, resolved: Iterable[ResolvedInsertionPoint]
) -> set[ResolvedInsertionPoint]:
    """Replace the points of all edges of a tensor with one point for the tensor.

    Raises:
        InvalidSchemeError: If the model has no such point.
    """
    points = set(resolved)
    whole = {point.tensor_name for point in points if point.node_index is None}
    edges: dict[str, set[Edge]] = {}
    for point in points:
        if point.node_index is not None:
            edges.setdefault(point.tensor_name, set()).add(_edge(graph, point))
    for tensor, covered in edges.items():
        if covered.issuperset(graph.readers(tensor)) and not graph.is_constant(tensor):
            whole.add(tensor)
    kept = {point for point in points if point.tensor_name not in whole}
    return kept | {ResolvedInsertionPoint(tensor) for tensor in whole}


def _edge(index: GraphIndex, point: ResolvedInsertionPoint) -> Edge:
    position = -1 if point.input_index is None else point.input_index
    node = point.node_index
    if node is not None and 0 <= node < len(index.nodes):
        edge = Edge(point.tensor_name, index.nodes[node].name or "", position)
        if index.has(edge):
            return edge
    raise InvalidSchemeError(f"{point}: the model has no such reader.", _FOREIGN)
