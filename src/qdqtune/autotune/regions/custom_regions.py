"""Regions that somebody else made: checked, and completed where something is missing."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtune.autotune.errors import AutotunerError
from qdqtune.autotune.regions.region import Region, walk
from qdqtune.autotune.regions.region_search import compute_region_boundaries
from qdqtune.graph.index import GraphIndex


def adopt_regions(regions: Iterable[Region], index: GraphIndex) -> list[Region]:
    """Make sure that regions can be tuned; those without borders get them.

    Args:
        regions: The regions, in the order in which they are to be tuned; one that is listed twice
            counts once.
        index: The graph whose node positions they hold.

    Raises:
        TypeError: If one is no region.
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
