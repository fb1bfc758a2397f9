"""Divide large parts into smaller ones, as a tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqtune.autotune.regions.partition import Limits, Part, Partitioner

#: Weighted, pooling and resizing ops in one sequence.
SEQUENCE_HEAVY_OPS = 3


@dataclass
class RegionOutline:
    """A planned region: either nodes or other outlines.

    Attributes:
        nodes: Positions; none if there are children.
        children: Smaller outlines, in the order of the graph.
    """

    nodes: list[int] = field(default_factory=list)
    children: list[RegionOutline] = field(default_factory=list)


def refine_part(
    part: Part, partitioner: Partitioner, *, sequence_nodes: int, least_nodes: int
) -> RegionOutline:
    """Divide a part into convergences and short sequences, and large convergences again.

    Args:
        part: The part.
        partitioner: The partitioner of the graph.
        sequence_nodes: Maximum number of nodes in a sequence.
        least_nodes: Parts with fewer nodes are not divided.
    """
    top = RegionOutline(part.nodes)
    waiting = [top]
    while waiting:
        outline = waiting.pop()
        if len(outline.nodes) < least_nodes:
            continue
        # Each child is smaller than its parent, so this terminates.
        limits = Limits(sequence_nodes, SEQUENCE_HEAVY_OPS, len(outline.nodes) - 1)
        parts = partitioner.cut(sorted(outline.nodes), limits)
        if len(parts) == 1:
            continue
        outline.children = [RegionOutline(child.nodes) for child in parts]
        outline.nodes = []
        waiting += [
            child for child, cut in zip(outline.children, parts, strict=True) if cut.converges
        ]
    return top
