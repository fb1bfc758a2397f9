"""Patterns as they occur in one model: which of their points a placement quantizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from qdqtune.autotune.canonical import CanonicalRegion
from qdqtune.autotune.insertion_points import (
    ChildRegionInputInsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.autotune.region_pattern import RegionPattern
from qdqtune.autotune.resolved import to_placement
from qdqtune.autotune.scheme import InsertionScheme
from qdqtune.graph.index import GraphIndex
from qdqtune.records.placement import Edge

_Point = NodeInputInsertionPoint | ChildRegionInputInsertionPoint | RegionOutputInsertionPoint


@dataclass(frozen=True)
class PatternView:
    """A pattern in one model.

    Attributes:
        pattern: With types and shapes.
        structure: Without.
        regions: How many regions have it.
        edges: What each point of it comes to in the first of them.
    """

    pattern: RegionPattern
    structure: RegionPattern
    regions: int
    edges: Mapping[_Point, frozenset[Edge]]

    def scheme_in(self, quantized: Collection[Edge]) -> InsertionScheme:
        """The scheme that a placement comes to in the pattern.

        Args:
            quantized: Every edge that the placement quantizes.
        """
        chosen = set(quantized)
        scheme = InsertionScheme()
        for point, edges in self.edges.items():
            if edges <= chosen:
                if isinstance(point, NodeInputInsertionPoint):
                    scheme.node_inputs.append(point)
                elif isinstance(point, ChildRegionInputInsertionPoint):
                    scheme.child_region_inputs.append(point)
                else:
                    scheme.region_outputs.append(point)
        return scheme


def view_pattern(form: CanonicalRegion, index: GraphIndex, regions: int) -> PatternView:
    """Look at a pattern through one of its regions.

    Args:
        form: The region's canonical form.
        index: The model, with shapes.
        regions: How many regions have the pattern.
    """
    points: list[_Point] = [
        *NodeInputInsertionPoint.collect_in(form, index),
        *ChildRegionInputInsertionPoint.collect_in(form, index),
        *RegionOutputInsertionPoint.collect_in(form, index),
    ]
    edges = {
        point: index.effective(to_placement(index, point.resolve_in(form, index)))
        for point in points
    }
    return PatternView(
        RegionPattern(form.signature(shapes=True), len(form.nodes)),
        RegionPattern(form.signature(), len(form.nodes)),
        regions,
        {point: frozenset(places) for point, places in edges.items() if places},
    )
