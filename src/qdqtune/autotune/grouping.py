"""From regions to choices: ops that play the same part in like regions are one group."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from qdqtune.autotune.canonical import canonical_region
from qdqtune.autotune.region import leaves
from qdqtune.autotune.region_search import CombinedRegionSearch
from qdqtune.autotune.space import Group
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.completion import Completion


@dataclass(frozen=True)
class Grouping:
    """The choices in a model, and what they were found in.

    Attributes:
        groups: In the graph's order.
        regions: How many regions there are, those that consist of others not counted.
        patterns: How many distinct ones, with shapes.
    """

    groups: tuple[Group, ...]
    regions: int
    patterns: int


def group_ops(index: GraphIndex, completion: Completion) -> Grouping:
    """Find the choices that a dialect leaves in a model.

    Regions with the same structure and shapes share a pattern, and the ops in one place of it are
    one group: all the insertion points of that place, in every region of the pattern.

    Args:
        index: The model, with shapes.
        completion: What can be quantized in it.
    """
    regions = CombinedRegionSearch(index).search_regions()
    numbers: dict[str, int] = {}
    found: dict[tuple[int, int], list[int]] = {}
    parts = list(leaves(regions))
    for region in parts:
        form = canonical_region(region, index)
        number = numbers.setdefault(form.signature(shapes=True), len(numbers))
        for role, position in enumerate(form.nodes):
            name = index.nodes[position].name or ""
            if name in completion.units:
                found.setdefault((number, role), []).append(position)
    signatures = list(numbers)
    groups = [
        Group(
            signatures[number],
            role,
            index.nodes[positions[0]].op_type,
            tuple(index.nodes[position].name or "" for position in sorted(positions)),
            _kin(index, index.nodes[positions[0]]),
        )
        for (number, role), positions in sorted(found.items(), key=lambda item: min(item[1]))
    ]
    return Grouping(tuple(groups), len(parts), len(numbers))


def _kin(index: GraphIndex, node: ir.Node) -> str:
    """What an op is, wherever it stands: type, attributes and shapes."""
    attributes = sorted(f"{name}={attribute}" for name, attribute in node.attributes.items())
    shapes = [index.shape(value.name or "") for value in node.inputs if value is not None]
    return f"{node.op_type}{attributes}{shapes}"
