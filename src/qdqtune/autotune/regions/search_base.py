"""Base class of region searches: computes borders and prints the region tree."""

from __future__ import annotations

from typing import TextIO

from qdqtune.autotune.regions.canonical import canonical_region
from qdqtune.autotune.regions.region import Region
from qdqtune.graph.index import GraphIndex


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
