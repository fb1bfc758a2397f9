"""User-supplied regions: built from node names, or validated and completed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from qdqtune.autotune.errors import AutotunerError
from qdqtune.autotune.regions.region import Region, RegionType, walk
from qdqtune.autotune.regions.search_base import compute_region_boundaries
from qdqtune.graph.index import GraphIndex


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
