"""From large parts down to small ones: a tree of what lies inside what."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqtune.autotune.regions.partition import Limits, Part, Partitioner

#: Weighted, pooling and resizing ops in one sequence.
SEQUENCE_HEAVY_OPS = 3


@dataclass
class RegionOutline:
    """A region to be: either nodes or other outlines.

    Attributes:
        nodes: Positions; none if there are children.
        children: Smaller outlines, in the order of the graph.
    """

    nodes: list[int] = field(default_factory=list)
    children: list[RegionOutline] = field(default_factory=list)


def refine_part(
    part: Part, partitioner: Partitioner, *, sequence_nodes: int, least_nodes: int
) -> RegionOutline:
    """Cut a part into convergences and short sequences, and large convergences again.

    Args:
        part: The part.
        partitioner: What cuts.
        sequence_nodes: The longest sequence.
        least_nodes: Parts with fewer nodes stay whole.
    """
    top = RegionOutline(part.nodes)
    waiting = [top]
    while waiting:
        outline = waiting.pop()
        if len(outline.nodes) < least_nodes:
            continue
        # Each child is smaller than what it was cut out of, so this comes to an end.
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
