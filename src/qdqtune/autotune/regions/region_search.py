"""Find the regions of a graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from qdqtune.autotune.regions.partition import Limits, Part, Partitioner
from qdqtune.autotune.regions.refinement import RegionOutline, refine_part
from qdqtune.autotune.regions.region import Region, RegionType, walk
from qdqtune.autotune.regions.search_base import RegionSearchBase, compute_region_boundaries
from qdqtune.autotune.regions.wiring import wiring_of
from qdqtune.graph.index import GraphIndex
from qdqtune.records.errors import UsageError


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
            partitioner = _partitioner(self.graph)
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


class RegionPartitioner(RegionSearchBase):
    """The first half of the search: bottom-up into convergences and sequences.

    Args:
        graph: The graph.
    """

    def partition_graph(self) -> list[Region]:
        """Partition the graph into disjoint leaves that cover it."""
        with _collector_paused():
            parts = _parts(self.graph, _partitioner(self.graph))
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
            _partitioner(self.graph),
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


def _partitioner(graph: GraphIndex) -> Partitioner:
    return Partitioner(graph, wiring_of(graph))


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
