"""Patterns as they occur in one model: which of their points a placement quantizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from qdqtune.autotune.patterns.insertion_points import (
    ChildRegionInputInsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.autotune.patterns.region_pattern import RegionPattern
from qdqtune.autotune.patterns.resolved import to_placement
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.regions.canonical import CanonicalRegion
from qdqtune.autotune.regions.region import Region
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.records.placement import Edge

_Point = NodeInputInsertionPoint | ChildRegionInputInsertionPoint | RegionOutputInsertionPoint


@dataclass(frozen=True)
class PatternView:
    """A pattern as it occurs in one model.

    Attributes:
        pattern: The pattern with types and shapes.
        structure: The pattern without them.
        first: The first region of the pattern.
        regions: Number of regions of the pattern.
        nodes: Names of the nodes in all those regions.
        edges: The edges of each point in the first region.
        weighted: Names of weighted ops that read such an edge: quantized whole or not at all.
    """

    pattern: RegionPattern
    structure: RegionPattern
    first: Region
    regions: int
    nodes: frozenset[str]
    edges: Mapping[_Point, frozenset[Edge]]
    weighted: frozenset[str]

    def scheme_in(self, quantized: Collection[Edge], kernels: Collection[str]) -> InsertionScheme:
        """Return the scheme that a placement amounts to in the pattern.

        A point stands for a whole kernel: an op has no point if it reads a quantized tensor only
        because another op needs it quantized.

        Args:
            quantized: Every edge that the placement quantizes.
            kernels: Names of the ops that it turns into integer kernels.
        """
        chosen, whole = set(quantized), set(kernels)
        scheme = InsertionScheme()
        for point, edges in self.edges.items():
            if not edges <= chosen:
                continue
            if isinstance(point, RegionOutputInsertionPoint):
                if all(edge.node in whole for edge in edges if edge.node in self.weighted):
                    scheme.region_outputs.append(point)
            elif all(edge.node in whole for edge in edges):
                if isinstance(point, NodeInputInsertionPoint):
                    scheme.node_inputs.append(point)
                else:
                    scheme.child_region_inputs.append(point)
        return scheme


def view_pattern(first: Region, forms: Sequence[CanonicalRegion], index: GraphIndex) -> PatternView:
    """View a pattern through one of its regions.

    Args:
        first: The region.
        forms: Canonical forms of all regions of the pattern, that of `first` first.
        index: The model, with shapes.
    """
    form = forms[0]
    points: list[_Point] = [
        *NodeInputInsertionPoint.collect_in(form, index),
        *ChildRegionInputInsertionPoint.collect_in(form, index),
        *RegionOutputInsertionPoint.collect_in(form, index),
    ]
    edges = {
        point: index.effective(to_placement(index, point.resolve_in(form, index)))
        for point in points
    }
    readers = {edge.node for places in edges.values() for edge in places if edge.node}
    return PatternView(
        RegionPattern(form.signature(shapes=True), len(form.nodes)),
        RegionPattern(form.signature(), len(form.nodes)),
        first,
        len(forms),
        frozenset(index.nodes[position].name or "" for each in forms for position in each.nodes),
        {point: frozenset(places) for point, places in edges.items() if places},
        frozenset(name for name in readers if is_op(index.node[name], *WEIGHTED_OPS)),
    )
