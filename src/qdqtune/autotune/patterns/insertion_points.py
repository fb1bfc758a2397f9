"""Insertion points for Q/DQ pairs, relative to a pattern and in one model.

A point's indices are positions in the pattern's canonical form, so they mean the same role in every
region of the pattern. Points are engine-neutral; the dialect completes them later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.autotune.patterns.eligibility import activation_input, why_not, why_not_output
from qdqtune.autotune.patterns.resolved import ResolvedInsertionPoint
from qdqtune.autotune.regions.canonical import CanonicalRegion, ChildForm, canonical_region
from qdqtune.autotune.regions.region import Region
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op

_FOREIGN = "The scheme belongs to another pattern, or its file was changed."

Point = TypeVar("Point", bound="InsertionPoint")


class InsertionPoint(ABC):
    """An insertion point for a Q/DQ pair, relative to a pattern."""

    def resolve(self, region: Region, graph: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return its insertion points in one model; none if it can't pay off in this region.

        Raises:
            InvalidSchemeError: If the region's pattern has no such point.
        """
        return self.resolve_in(canonical_region(region, graph), graph)

    @abstractmethod
    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Like `resolve`, for a region whose canonical form is already known."""

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls: type[Point], body: Mapping[str, Any]) -> Point:
        """Parse the serialized form.

        Raises:
            InvalidSchemeError: If it is invalid.
        """
        names = [each.name for each in fields(cls)]  # type: ignore[arg-type]
        known = isinstance(body, Mapping) and all(name in names for name in body)
        if not known or not all(_is_place(value) for value in body.values()):
            raise InvalidSchemeError(
                f"{body!r} is not an insertion point.", f"It has whole numbers for {names}."
            )
        try:
            return cls(**body)
        except TypeError:
            raise InvalidSchemeError(
                f"{body!r} is not a whole insertion point.", f"It has whole numbers for {names}."
            ) from None


def _is_place(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


@dataclass(frozen=True)
class NodeInputInsertionPoint(InsertionPoint):
    """One input of one of the region's own nodes.

    Attributes:
        node_index: The node, in canonical order.
        input_index: Its input, in canonical order.
    """

    node_index: int
    input_index: int

    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return the input, and the other operand of a weighted op."""
        node = _at(form.nodes, self.node_index, "node", self)
        position = _at(form.input_positions(self.node_index), self.input_index, "input", self)
        return edge_with_operand(index, node, position)

    @staticmethod
    def collect_from_region(region: Region, graph: GraphIndex) -> list[NodeInputInsertionPoint]:
        """Collect all such points that can pay off, in canonical order."""
        return NodeInputInsertionPoint.collect_in(canonical_region(region, graph), graph)

    @staticmethod
    def collect_in(form: CanonicalRegion, index: GraphIndex) -> list[NodeInputInsertionPoint]:
        """Like `collect_from_region`, for a region whose canonical form is already known."""
        return [
            NodeInputInsertionPoint(node_index, input_index)
            for node_index in form.own_nodes
            for input_index, position in enumerate(form.input_positions(node_index))
            if not why_not(index, form.nodes[node_index], position)
        ]


@dataclass(frozen=True)
class ChildRegionInputInsertionPoint(InsertionPoint):
    """An input of a child: every edge in the child that reads the tensor and can pay off.

    Attributes:
        region_index: The child, in canonical order.
        input_index: Its input, in the order of the parent's pattern.
    """

    region_index: int
    input_index: int

    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return the edges into the child, with the other operands of weighted ops."""
        child = _child(form, self.region_index, self)
        tensor = _at(child.inputs, self.input_index, "input", self)
        edges = form.edges_into_child(self.region_index, tensor)
        return set().union(*(edge_with_operand(index, node, position) for node, position in edges))

    @staticmethod
    def collect_from_region(
        region: Region, graph: GraphIndex
    ) -> list[ChildRegionInputInsertionPoint]:
        """Collect all such points that can pay off, in canonical order; a LEAF has none."""
        return ChildRegionInputInsertionPoint.collect_in(canonical_region(region, graph), graph)

    @staticmethod
    def collect_in(
        form: CanonicalRegion, index: GraphIndex
    ) -> list[ChildRegionInputInsertionPoint]:
        """Like `collect_from_region`, for a region whose canonical form is already known."""
        points = (
            ChildRegionInputInsertionPoint(region_index, input_index)
            for region_index, child in enumerate(form.children)
            for input_index in range(len(child.inputs))
        )
        return [point for point in points if point.resolve_in(form, index)]


@dataclass(frozen=True)
class RegionOutputInsertionPoint(InsertionPoint):
    """A tensor that leaves the region, for all its consumers.

    Attributes:
        region_index: The child that produces it, in canonical order, if a child does.
        node_index: Otherwise the node that produces it, in canonical order.
        output_index: Which output of the child, or of the node.
    """

    region_index: int | None
    node_index: int | None
    output_index: int

    def resolve_in(self, form: CanonicalRegion, index: GraphIndex) -> set[ResolvedInsertionPoint]:
        """Return the tensor as a whole."""
        tensor = self._tensor(form, index)
        producer = index.value[tensor].producer()
        if tensor not in form.seen_outside or producer is None:
            raise InvalidSchemeError(f"{self} names a tensor that nobody outside sees.", _FOREIGN)
        output = list(producer.outputs).index(index.value[tensor])
        if why_not_output(index, index.position[producer.name or ""], output):
            return set()
        return {ResolvedInsertionPoint(tensor)}

    def _tensor(self, form: CanonicalRegion, index: GraphIndex) -> str:
        if (self.region_index is None) == (self.node_index is None):
            raise InvalidSchemeError(f"{self} needs either a child or a node.", _FOREIGN)
        if self.region_index is not None:
            child = _child(form, self.region_index, self)
            return _at(child.outputs, self.output_index, "output", self)
        assert self.node_index is not None
        node = index.nodes[_at(form.nodes, self.node_index, "node", self)]
        names = tuple(value.name or "" for value in node.outputs)
        name = _at(names, self.output_index, "output", self)
        if not name:
            raise InvalidSchemeError(f"{self} names an output that is left out.", _FOREIGN)
        return name

    @staticmethod
    def collect_from_region(region: Region, graph: GraphIndex) -> list[RegionOutputInsertionPoint]:
        """Collect all such points that can pay off: child outputs, then own nodes' outputs."""
        return RegionOutputInsertionPoint.collect_in(canonical_region(region, graph), graph)

    @staticmethod
    def collect_in(form: CanonicalRegion, index: GraphIndex) -> list[RegionOutputInsertionPoint]:
        """Like `collect_from_region`, for a region whose canonical form is already known."""
        points = [
            RegionOutputInsertionPoint(region_index, None, output_index)
            for region_index, child in enumerate(form.children)
            for output_index, tensor in enumerate(child.outputs)
            if tensor in form.seen_outside
        ]
        points += [
            RegionOutputInsertionPoint(None, node_index, output_index)
            for node_index, output_index in form.own_outputs
        ]
        return [point for point in points if point.resolve_in(form, index)]


def has_quantizable_operations(region: Region, graph: GraphIndex) -> bool:
    """Whether any node input in the region or its descendants is an insertion point."""
    return any(
        not why_not(graph, node, position)
        for node in region.get_region_nodes_and_descendants()
        for position in range(len(graph.nodes[node].inputs))
    )


def edge_with_operand(
    index: GraphIndex, node_position: int, position: int
) -> set[ResolvedInsertionPoint]:
    """Return one edge, with the other operand of a weighted op; nothing if it can't pay off."""
    if why_not(index, node_position, position):
        return set()
    node = index.nodes[node_position]
    positions = {position}
    if is_op(node, *WEIGHTED_OPS):
        positions.add(1 - activation_input(index, node))
    found = set()
    for each in positions:
        value = node.inputs[each] if each < len(node.inputs) else None
        if value is not None and value.name and index.is_float(value.name):
            found.add(ResolvedInsertionPoint(value.name, node_position, each))
    return found


_Item = TypeVar("_Item")


def _at(items: tuple[_Item, ...], place: int, what: str, point: InsertionPoint) -> _Item:
    if not 0 <= place < len(items):
        raise InvalidSchemeError(f"{point}: the pattern has no {what} {place} there.", _FOREIGN)
    return items[place]


def _child(form: CanonicalRegion, place: int, point: InsertionPoint) -> ChildForm:
    return _at(form.children, place, "child", point)
