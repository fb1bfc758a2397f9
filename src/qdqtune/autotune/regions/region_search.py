"""Finding the regions of a graph."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from qdqtune.autotune.regions.canonical import canonical_region
from qdqtune.autotune.regions.partition import Limits, Partitioner
from qdqtune.autotune.regions.refinement import Piece, refine_part
from qdqtune.autotune.regions.region import Region, RegionType, walk
from qdqtune.autotune.regions.wiring import wiring_of
from qdqtune.graph.index import GraphIndex
from qdqtune.records.errors import UsageError


class CombinedRegionSearch:
    """Bottom-up into convergences and sequences, then top-down into small pieces.

    Args:
        index: The graph.
        maximum_sequence_region_size: Nodes of the longest sequence inside a composite.
        minimum_topdown_search_size: Regions with fewer nodes stay whole.

    Raises:
        UsageError: If a size is not at least 1.
    """

    def __init__(
        self,
        index: GraphIndex,
        maximum_sequence_region_size: int = 10,
        minimum_topdown_search_size: int = 10,
    ) -> None:
        if maximum_sequence_region_size < 1 or minimum_topdown_search_size < 1:
            raise UsageError(
                f"Regions of {min(maximum_sequence_region_size, minimum_topdown_search_size)} "
                "nodes can't be searched for.",
                "Both sizes are whole numbers from 1 on.",
            )
        self._index = index
        self._sequence_nodes = maximum_sequence_region_size
        self._least_nodes = minimum_topdown_search_size

    def search_regions(self) -> list[Region]:
        """Find the regions; their leaves are disjoint and cover the graph."""
        with _collector_paused():
            return self._search()

    def _search(self) -> list[Region]:
        partitioner = Partitioner(self._index, wiring_of(self._index))
        parts = partitioner.cut(range(len(self._index.nodes)), Limits())
        pieces = [
            refine_part(
                part,
                partitioner,
                sequence_nodes=self._sequence_nodes,
                least_nodes=self._least_nodes,
            )
            for part in parts
        ]
        regions = _regions(pieces)
        for region in walk(regions):
            compute_region_boundaries(region, self._index)
        return regions


def compute_region_boundaries(region: Region, index: GraphIndex) -> None:
    """Set a region's inputs and outputs, in structural order."""
    form = canonical_region(region, index)
    region.inputs = list(form.inputs)
    region.outputs = list(form.outputs)


def _regions(pieces: list[Piece]) -> list[Region]:
    """Regions for pieces, numbered level by level."""
    top: list[Region] = []
    level: list[tuple[Piece, Region | None]] = [(piece, None) for piece in pieces]
    number = depth = 0
    while level:
        below: list[tuple[Piece, Region | None]] = []
        for piece, parent in level:
            kind = RegionType.COMPOSITE if piece.children else RegionType.LEAF
            region = Region(number, depth, kind)
            region.nodes.update(piece.nodes)
            number += 1
            if parent is None:
                top.append(region)
            else:
                parent.add_child(region)
            below += [(child, region) for child in piece.children]
        level, depth = below, depth + 1
    return top


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep Python from walking the whole model again and again while many tuples are made.

    They don't refer to each other in circles, so there is nothing to collect; it halves the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
