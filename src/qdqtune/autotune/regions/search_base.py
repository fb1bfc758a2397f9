"""What every search for regions offers besides the search: borders, and a tree to look at."""

from __future__ import annotations

from typing import TextIO

from qdqtune.autotune.regions.canonical import canonical_region
from qdqtune.autotune.regions.region import Region
from qdqtune.graph.index import GraphIndex


class RegionSearchBase:
    """A graph, and the regions of it that were found.

    Args:
        graph: The graph.
        root: A region to begin with.

    Attributes:
        graph: The graph.
        regions: The outermost regions that were found last.
    """

    def __init__(self, graph: GraphIndex, root: Region | None = None) -> None:
        self.graph = graph
        self.regions: list[Region] = [root] if root is not None else []

    def compute_region_boundaries(self, region: Region, include_constant: bool = False) -> None:
        """Set a region's inputs and outputs, in structural order.

        Args:
            region: The region.
            include_constant: Whether the constants that it reads follow its inputs.
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
            region: The region; None is every one that was found.
            indent: How deep to begin.
            max_items: How many nodes or tensors of a region are named.
            file: Where to print; None is the standard output.
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
