"""Find the regions of a graph, or build and complete those that a user supplies."""

from __future__ import annotations

import difflib
import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TextIO

from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import UsageError
from qdqtune.search._errors import AutotunerError
from qdqtune.search.regions._canonical import canonical_region
from qdqtune.search.regions._partition import Limits, Part, Partitioner, RegionOutline, refine_part
from qdqtune.search.regions._region import Region, RegionType, walk


class RegionSearchBase:
    """A graph and the regions found in it.

    Args:
        graph: The graph.
        root: An initial region.

    Attributes:
        graph: The graph.
        regions: The outermost regions of the last search.
    """

    def __init__(self, graph: GraphIndex, root: Region | None = None) -> None:
        self.graph = graph
        self.regions: list[Region] = [root] if root is not None else []

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
            read = (
                value.name or "" for node in nodes for value in node.inputs if value is not None
            )
            region.inputs += filter(self.graph.is_constant, dict.fromkeys(read))

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
        super().__init__(graph)
        _check_sizes(maximum_sequence_region_size, minimum_topdown_search_size)
        self._sequence_nodes = maximum_sequence_region_size
        self._least_nodes = minimum_topdown_search_size

    def search_regions(self) -> list[Region]:
        """Find the regions; their leaves are disjoint and cover the graph."""
        with _collector_paused():
            partitioner = Partitioner(self.graph)
            outlines = [
                refine_part(
                    part,
                    partitioner,
                    sequence_nodes=self._sequence_nodes,
                    least_nodes=self._least_nodes,
                )
                for part in _parts(self.graph, partitioner)
            ]
            self.regions = _regions(outlines, self.graph)
        return self.regions


TorchRegionBuilder = CombinedRegionSearch
"""Another tool's name for a region search."""


class RegionPartitioner(RegionSearchBase):
    """The first half of the search: bottom-up into convergences and sequences.

    Args:
        graph: The graph.
    """

    def partition_graph(self) -> list[Region]:
        """Partition the graph into disjoint leaves that cover it."""
        with _collector_paused():
            parts = _parts(self.graph, Partitioner(self.graph))
            self.regions = _regions([RegionOutline(part.nodes) for part in parts], self.graph)
        return self.regions


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
        super().__init__(graph, root)
        _check_sizes(maximum_sequence_region_size, minimum_topdown_search_size)
        self._root = root
        self._first_id = next_region_id
        self._sequence_nodes = maximum_sequence_region_size
        self._least_nodes = minimum_topdown_search_size

    def build_composite_region(self) -> Region:
        """Build a region with the same nodes, divided into smaller ones if it is large enough."""
        nodes = sorted(self._root.get_region_nodes_and_descendants())
        outline = refine_part(
            Part(nodes, converges=True),
            Partitioner(self.graph),
            sequence_nodes=self._sequence_nodes,
            least_nodes=self._least_nodes,
        )
        self.regions = _regions([outline], self.graph, self._first_id, self._root.level)
        return self.regions[0]


def _check_sizes(sequence_nodes: int, least_nodes: int) -> None:
    if sequence_nodes < 1 or least_nodes < 1:
        raise UsageError(
            f"Regions of {min(sequence_nodes, least_nodes)} nodes can't be searched for.",
            "Both sizes are whole numbers from 1 on.",
        )


def _parts(graph: GraphIndex, partitioner: Partitioner) -> list[Part]:
    return partitioner.cut(range(len(graph.nodes)), Limits())


def _regions(
    outlines: list[RegionOutline], graph: GraphIndex, number: int = 0, depth: int = 0
) -> list[Region]:
    """Build regions from outlines, numbered level by level."""
    top: list[Region] = []
    level: list[tuple[RegionOutline, Region | None]] = [(outline, None) for outline in outlines]
    while level:
        below: list[tuple[RegionOutline, Region | None]] = []
        for outline, parent in level:
            kind = RegionType.COMPOSITE if outline.children else RegionType.LEAF
            region = Region(number, depth, kind)
            region.nodes.update(outline.nodes)
            number += 1
            if parent is None:
                top.append(region)
            else:
                parent.add_child(region)
            below += [(child, region) for child in outline.children]
        level, depth = below, depth + 1
    for region in walk(top):
        compute_region_boundaries(region, graph)
    return top


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
