"""Partition nodes into convergences and sequences, and divide large parts into smaller ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import POOL_OPS, WEIGHTED_OPS, is_op
from qdqtune.search.regions._wiring import wiring_of


def post_dominators(successors: Sequence[Sequence[int]]) -> list[int]:
    """For every node, find the first node that all paths from it to the exit pass through.

    Nodes are in topological order. A virtual exit, number `len(successors)`, follows the nodes
    without readers. Jump pointers find each meeting point in O(log n), however long a skip is.

    Args:
        successors: By node, its readers.
    """
    exit_ = len(successors)
    parent = [exit_] * (exit_ + 1)
    depth = [0] * (exit_ + 1)
    jump = [exit_] * (exit_ + 1)
    for node in range(exit_ - 1, -1, -1):
        meeting = -1
        for reader in successors[node]:
            meeting = reader if meeting < 0 else _meet(meeting, reader, parent, depth, jump)
            if meeting == exit_:
                break
        above = meeting if meeting >= 0 else exit_
        parent[node] = above
        depth[node] = depth[above] + 1
        # Two jumps of equal length above combine into one of double length; otherwise it is a
        # single step.
        far = jump[above]
        same = depth[above] - depth[far] == depth[far] - depth[jump[far]]
        jump[node] = jump[far] if same else above
    return parent[:exit_]


def _meet(a: int, b: int, parent: list[int], depth: list[int], jump: list[int]) -> int:
    """Return the deepest common ancestor, which may be one of the two."""
    if depth[a] < depth[b]:
        a, b = b, a
    while depth[a] > depth[b]:
        a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
    while a != b:
        if jump[a] == jump[b]:
            a, b = parent[a], parent[b]
        else:
            a, b = jump[a], jump[b]
    return a


#: How many nodes may lie between a divergent node and the one where its paths meet again.
LARGEST_INTERIOR = 100

_HEAVY_OPS = WEIGHTED_OPS | POOL_OPS | {"Resize"}


class Limits(NamedTuple):
    """Maximum sizes of a part; None for no limit.

    Attributes:
        sequence_nodes: Nodes of a sequence, and of the tail of a convergence.
        sequence_heavy_ops: Weighted, pooling and resizing ops of a sequence.
        convergence_nodes: Nodes of a convergence.
    """

    sequence_nodes: int | None = None
    sequence_heavy_ops: int | None = None
    convergence_nodes: int | None = None


class Part(NamedTuple):
    """A part of the partition.

    Attributes:
        nodes: Positions, in the order in which they were found.
        converges: Whether it is a convergence (otherwise a sequence).
    """

    nodes: list[int]
    converges: bool


class Partitioner:
    """Partitions sets of nodes of one graph.

    Args:
        index: The graph.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._wiring = wiring_of(index)
        self._heavy = [is_op(node, *_HEAVY_OPS) for node in index.nodes]
        self._meeting = post_dominators(self._wiring.successors)
        size = len(index.nodes)
        self._free = bytearray(size)  # in the set and in no part yet
        self._inside = bytearray(size)  # in the set
        self._enclosed = bytearray(size)  # between the ends of an accepted convergence
        self._waiting = [0] * size  # number of its producers that are still free

    def cut(self, nodes: Sequence[int], limits: Limits) -> list[Part]:
        """Partition a set of nodes into disjoint parts that cover it.

        Nodes outside the set count as already assigned.

        Args:
            nodes: Positions, ascending.
            limits: Maximum sizes of a part.
        """
        for node in nodes:
            self._inside[node] = self._free[node] = 1
            self._enclosed[node] = 0
        for node in nodes:
            self._waiting[node] = sum(self._free[read] for read in self._wiring.predecessors[node])
        parts: list[Part] = []
        for node in nodes:
            if self._is_divergent(node) and not self._enclosed[node]:
                converged = self._converged(node, limits)
                if converged:
                    parts.append(Part(converged, converges=True))
            if self._free[node]:
                parts.append(Part(self._sequence(node, limits), converges=False))
        for node in nodes:
            self._inside[node] = 0
        return parts

    def _is_divergent(self, node: int) -> bool:
        return len(self._wiring.successors[node]) > 1

    def _take(self, node: int) -> None:
        self._free[node] = 0
        for reader in self._wiring.successors[node]:
            self._waiting[reader] -= 1

    def _next(self, node: int) -> int | None:
        """Return the only reader of a node, if all its other producers are already assigned."""
        successors = self._wiring.successors[node]
        if len(successors) != 1 or not self._free[successors[0]] or self._waiting[successors[0]]:
            return None
        return successors[0]

    def _sequence(self, start: int, limits: Limits) -> list[int]:
        """Follow a chain of nodes from this one up to and including the next divergent node."""
        sequence: list[int] = []
        heavy = 0
        node: int | None = start
        while node is not None:
            heavy += self._heavy[node]
            if sequence and (
                (limits.sequence_nodes is not None and len(sequence) >= limits.sequence_nodes)
                or (limits.sequence_heavy_ops is not None and heavy > limits.sequence_heavy_ops)
            ):
                break
            sequence.append(node)
            self._take(node)
            node = self._next(node)
        return sequence

    def _converged(self, start: int, limits: Limits) -> list[int]:
        """Return the free nodes on the paths from a divergent node, the meeting point and its tail.

        The tail ends with the next divergent node, or before the next heavy op, which starts a new
        part: this way the same block becomes the same region wherever it occurs.
        """
        most, tail_nodes = limits.convergence_nodes, limits.sequence_nodes
        end = self._meeting[start]
        if end >= len(self._inside) or not self._inside[end]:
            return []
        interior = self._interior(start, end)
        free = [node for node in (start, *sorted(interior), end) if self._free[node]]
        if not interior or not any(self._free[node] for node in interior):
            return []
        if most is not None and len(free) > most:
            return []
        for node in interior:
            self._enclosed[node] = 1
        ends_here = self._free[end]
        for node in free:
            self._take(node)
        tail = self._next(end) if ends_here else None
        most = min(
            len(self._inside) if most is None else most,
            len(self._inside) if tail_nodes is None else len(free) + tail_nodes,
        )
        while tail is not None and not self._heavy[tail] and len(free) < most:
            free.append(tail)
            self._take(tail)
            tail = self._next(tail)
        return free

    def _interior(self, start: int, end: int) -> set[int]:
        """Return all nodes between two; empty if too many, or if some are outside the set."""
        found: set[int] = set()
        waiting = [start]
        while waiting:
            for reader in self._wiring.successors[waiting.pop()]:
                if reader == end or reader in found:
                    continue
                if len(found) >= LARGEST_INTERIOR or not self._inside[reader]:
                    return set()
                found.add(reader)
                waiting.append(reader)
        return found


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
