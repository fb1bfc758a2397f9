"""From large parts down to small ones: a tree of what lies inside what."""

from __future__ import annotations

from dataclasses import dataclass, field

from qdqtune.autotune.regions.partition import Limits, Part, Partitioner

#: Weighted, pooling and resizing ops in one sequence.
SEQUENCE_HEAVY_OPS = 3


@dataclass
class Piece:
    """A region to be: either nodes or other pieces.

    Attributes:
        nodes: Positions; none if there are children.
        children: Smaller pieces, in the order of the graph.
    """

    nodes: list[int] = field(default_factory=list)
    children: list[Piece] = field(default_factory=list)


def refine_part(
    part: Part, partitioner: Partitioner, *, sequence_nodes: int, least_nodes: int
) -> Piece:
    """Cut a part into convergences and short sequences, and large convergences again.

    Args:
        part: The part.
        partitioner: What cuts.
        sequence_nodes: The longest sequence.
        least_nodes: Parts with fewer nodes stay whole.
    """
    top = Piece(part.nodes)
    waiting = [top]
    while waiting:
        piece = waiting.pop()
        if len(piece.nodes) < least_nodes:
            continue
        # Each child is smaller than what it was cut out of, so this comes to an end.
        limits = Limits(sequence_nodes, SEQUENCE_HEAVY_OPS, len(piece.nodes) - 1)
        parts = partitioner.cut(sorted(piece.nodes), limits)
        if len(parts) == 1:
            continue
        piece.children = [Piece(child.nodes) for child in parts]
        piece.nodes = []
        waiting += [
            child for child, cut in zip(piece.children, parts, strict=True) if cut.converges
        ]
    return top
