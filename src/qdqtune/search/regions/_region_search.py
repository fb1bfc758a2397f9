"""Find the regions of a graph, or build and complete those that a user supplies."""

from __future__ import annotations

import difflib
import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple, TextIO

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import POOL_OPS, WEIGHTED_OPS, is_op
from qdqtune.records._errors import AutotunerError, UsageError
from qdqtune.search.regions._canonical import canonical_region
from qdqtune.search.regions._region import Region, RegionType, walk
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

#: Weighted, pooling and resizing ops in one sequence.
SEQUENCE_HEAVY_OPS = 3

#: Ops that take most of a model's time, and those that change the size of what they read.
HEAVY_OPS = WEIGHTED_OPS | POOL_OPS | {"Resize"}


class Limits(NamedTuple):
    """Maximum sizes of a part.

    Attributes:
        sequence_nodes: Nodes of a sequence, and of the tail of a convergence.
        sequence_heavy_ops: Weighted, pooling and resizing ops of a sequence.
        convergence_nodes: Nodes of a convergence.
    """

    sequence_nodes: float = math.inf
    sequence_heavy_ops: float = math.inf
    convergence_nodes: float = math.inf


class Part(NamedTuple):
    """A part of the partition.

    Attributes:
        nodes: Positions, in the order in which they were found.
        converges: Whether it is a convergence (otherwise a sequence).
        parts: What it consists of, if that is known already.
    """

    nodes: list[int]
    converges: bool
    parts: tuple[Part, ...] = ()


class Partitioner:
    """Partitions sets of nodes of one graph.

    Args:
        index: The graph.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._wiring = wiring_of(index)
        self._heavy = [is_op(node, *HEAVY_OPS) for node in index.nodes]
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
            diverges = len(self._wiring.successors[node]) > 1
            if diverges and not self._enclosed[node]:
                converged = self._converged(node, limits)
                if converged:
                    parts.append(Part(converged, converges=True))
            if self._free[node]:
                parts.append(Part(self._sequence(node, limits), converges=False))
        for node in nodes:
            self._inside[node] = 0
        return parts

    def divide(self, part: Part, sequence_nodes: int, least_nodes: float) -> list[Part]:
        """Divide a part into convergences and short sequences; none if it stays whole.

        Args:
            part: The part.
            sequence_nodes: Maximum number of nodes in a sequence.
            least_nodes: Parts with fewer nodes are not divided.
        """
        if len(part.nodes) < least_nodes:
            return []
        # Each part is smaller than the whole, so dividing them again terminates.
        limits = Limits(sequence_nodes, SEQUENCE_HEAVY_OPS, len(part.nodes) - 1)
        parts = self.cut(sorted(part.nodes), limits)
        return parts if len(parts) > 1 else []

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
            is_full = len(sequence) >= limits.sequence_nodes or heavy > limits.sequence_heavy_ops
            if sequence and is_full:
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
        end = self._meeting[start]
        if end >= len(self._inside) or not self._inside[end]:
            return []
        interior = self._interior(start, end)
        free = [node for node in (start, *sorted(interior), end) if self._free[node]]
        if len(free) > limits.convergence_nodes or not any(self._free[node] for node in interior):
            return []
        for node in interior:
            self._enclosed[node] = 1
        ends_here = self._free[end]
        for node in free:
            self._take(node)
        tail = self._next(end) if ends_here else None
        most = min(limits.convergence_nodes, len(free) + limits.sequence_nodes)
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


class RegionSearchBase:
    """A graph and the regions found in it.

    Args:
        graph: The graph.
        root: An initial region.
        maximum_sequence_region_size: Maximum number of nodes in a sequence inside a composite.
        minimum_topdown_search_size: Regions with fewer nodes are not divided.

    Attributes:
        graph: The graph.
        regions: The outermost regions of the last search.

    Raises:
        UsageError: If a size is not at least 1.
    """

    def __init__(
        self,
        graph: GraphIndex,
        root: Region | None = None,
        maximum_sequence_region_size: int = 10,
        minimum_topdown_search_size: int = 10,
    ) -> None:
        self.graph = graph
        self.regions: list[Region] = [root] if root is not None else []
        self._sequence_nodes = maximum_sequence_region_size
        self._least_nodes: float = minimum_topdown_search_size
        smallest = min(maximum_sequence_region_size, minimum_topdown_search_size)
        if smallest < 1:
            raise UsageError(
                f"Regions of {smallest} nodes can't be searched for.",
                "Both sizes must be whole numbers of at least 1.",
            )

    def compute_region_boundaries(self, region: Region, include_constant: bool = False) -> None:
        """Set a region's inputs and outputs, in structural order.

        Args:
            region: The region.
            include_constant: Whether to append the constants that it reads to its inputs.
        """
        compute_region_boundaries(region, self.graph)
        if include_constant:
            nodes = (
                self.graph.nodes[place] for place in canonical_region(region, self.graph).nodes
            )
            read = dict.fromkeys(name for node in nodes for name in self.graph.reads(node))
            region.inputs += filter(self.graph.is_constant, read)

    def print_tree(
        self,
        region: Region | None = None,
        indent: int = 0,
        max_items: int = 20,
        file: TextIO | None = None,
    ) -> None:
        """Print regions with their nodes and borders, each indented below its parent.

        Args:
            region: The region; None prints all that were found.
            indent: The initial depth.
            max_items: Maximum number of nodes or tensors named per region.
            file: The output stream; None is stdout.
        """
        waiting = [(each, indent) for each in ([region] if region is not None else self.regions)]
        waiting.reverse()
        while waiting:
            each, depth = waiting.pop()
            margin = "  " * depth
            nodes = [self.graph.nodes[place] for place in each.get_nodes(sort=True)]
            names = [f"{node.name} ({node.op_type})" for node in nodes]
            print(f"{margin}{each!r}", file=file)
            for title, items in (
                ("nodes", names), ("inputs", each.inputs), ("outputs", each.outputs),
            ):  # fmt: skip
                if items:
                    more = [f"and {len(items) - max_items} more"] if len(items) > max_items else []
                    print(f"{margin}  {title}: {', '.join(items[:max_items] + more)}", file=file)
            waiting += [(child, depth + 1) for child in reversed(each.children)]

    def _build(self, parts: Sequence[Part] = (), first_id: int = 0, depth: int = 0) -> list[Region]:
        """Build regions, numbered level by level.

        Args:
            parts: What is divided, unless its parts are known; nothing for the whole graph.
            first_id: The number of the first region.
            depth: The level of the first regions.
        """
        with _collector_paused():
            partitioner = Partitioner(self.graph)
            parts = parts or partitioner.cut(range(len(self.graph.nodes)), Limits())
            numbers = count(first_id)
            self.regions = []
            level: list[tuple[Part, Region | None]] = [(part, None) for part in parts]
            while level:
                below: list[tuple[Part, Region | None]] = []
                for part, parent in level:
                    smaller = list(part.parts)
                    if not smaller and (part.converges or parent is None):
                        smaller = partitioner.divide(part, self._sequence_nodes, self._least_nodes)
                    kind = RegionType.COMPOSITE if smaller else RegionType.LEAF
                    region = Region(next(numbers), depth, kind)
                    region.nodes.update(() if smaller else part.nodes)
                    if parent is None:
                        self.regions.append(region)
                    else:
                        parent.add_child(region)
                    below += [(each, region) for each in smaller]
                level, depth = below, depth + 1
            for region in walk(self.regions):
                compute_region_boundaries(region, self.graph)
        return self.regions


def compute_region_boundaries(region: Region, index: GraphIndex) -> None:
    """Set a region's inputs and outputs, in structural order."""
    form = canonical_region(region, index)
    region.inputs = list(form.inputs)
    region.outputs = list(form.outputs)


class CombinedRegionSearch(RegionSearchBase):
    """Finds convergences and sequences bottom-up, then divides them top-down.

    Args:
        graph: The graph.
        maximum_sequence_region_size: Maximum number of nodes in a sequence inside a composite.
        minimum_topdown_search_size: Regions with fewer nodes are not divided.

    Raises:
        UsageError: If a size is not at least 1.
    """

    def __init__(
        self,
        graph: GraphIndex,
        maximum_sequence_region_size: int = 10,
        minimum_topdown_search_size: int = 10,
    ) -> None:
        super().__init__(graph, None, maximum_sequence_region_size, minimum_topdown_search_size)

    def search_regions(self) -> list[Region]:
        """Find the regions; their leaves are disjoint and cover the graph."""
        return self._build()


class RegionPartitioner(RegionSearchBase):
    """The first half of the search: bottom-up into convergences and sequences.

    Args:
        graph: The graph.
    """

    def partition_graph(self) -> list[Region]:
        """Partition the graph into disjoint leaves that cover it."""
        self._least_nodes = math.inf
        return self._build()


class TopDownRegionBuilder(RegionSearchBase):
    """The second half of the search: divides one region top-down into small regions.

    Args:
        graph: The graph.
        root: The region; it is not changed.
        next_region_id: The number of the first new region.
        maximum_sequence_region_size: Maximum number of nodes in a sequence inside a composite.
        minimum_topdown_search_size: Regions with fewer nodes are not divided.

    Raises:
        UsageError: If a size is not at least 1.
    """

    def __init__(
        self,
        graph: GraphIndex,
        root: Region,
        next_region_id: int = 0,
        maximum_sequence_region_size: int = 10,
        minimum_topdown_search_size: int = 10,
    ) -> None:
        super().__init__(graph, root, maximum_sequence_region_size, minimum_topdown_search_size)
        self._root = root
        self._first_id = next_region_id

    def build_composite_region(self) -> Region:
        """Build a region with the same nodes, divided into smaller ones if it is large enough."""
        nodes = sorted(self._root.get_region_nodes_and_descendants())
        part = Part(nodes, converges=True)
        return self._build([part], self._first_id, self._root.level)[0]


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause garbage collection while many tuples are created.

    They have no reference cycles, so there is nothing to collect; this halves the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def region_of(graph: GraphIndex, names: Iterable[str], region_id: int = 0) -> Region:
    """Build a region from node names.

    Args:
        graph: An autotuner's `graph`.
        names: Names of nodes; unnamed nodes are named after their op and position.
        region_id: A unique number.

    Raises:
        AutotunerError: If no names are given, or the graph has no such node.
    """
    wanted = [names] if isinstance(names, str) else list(names)
    if not wanted:
        raise AutotunerError("A region without nodes can't be tuned.", "Name its nodes.")
    region = Region(region_id, 0, RegionType.LEAF)
    for name in wanted:
        if name not in graph.position:
            near = difflib.get_close_matches(name, graph.position, n=1)
            guess = f" Did you mean {near[0]!r}?" if near else ""
            raise AutotunerError(
                f"The graph has no node {name!r}.{guess}",
                "It is the folded model: nodes that compute constants, or were fused into others, "
                "are gone. `[node.name for node in graph.nodes]` are those that there are.",
            )
        region.nodes.add(graph.position[name])
    compute_region_boundaries(region, graph)
    return region


def adopt_regions(regions: Iterable[Region], index: GraphIndex) -> list[Region]:
    """Check that regions can be tuned; compute missing borders.

    Args:
        regions: The regions, in the order in which to tune them; duplicates count once.
        index: The graph that their node positions refer to.

    Raises:
        TypeError: If an item is not a region.
        AutotunerError: If two have the same number, or one doesn't fit the graph.
    """
    listed = list(dict.fromkeys(regions))
    for region in listed:
        if not isinstance(region, Region):
            raise TypeError(f"{type(region).__name__} is not a region.")
    by_id: dict[int, Region] = {}
    for region in walk(listed):
        if by_id.setdefault(region.id, region) is not region:
            raise AutotunerError(
                f"Two regions have the number {region.id}.", "Give each region a number of its own."
            )
        if not region.inputs and not region.outputs:
            compute_region_boundaries(region, index)
    return listed
