"""From regions to choices: ops that play the same part in like regions are one group."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtune.autotune.space import Group
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.completion import Completion


@dataclass(frozen=True)
class Grouping:
    """The choices in a model, and what they were found in.

    Attributes:
        groups: In the graph's order.
        regions: How many regions there are.
        patterns: How many distinct ones, with shapes.
    """

    groups: tuple[Group, ...]
    regions: int
    patterns: int


def group_ops(index: GraphIndex, completion: Completion) -> Grouping:
    """Find the choices that a dialect leaves in a model.

    Args:
        index: The model, with shapes.
        completion: What can be quantized in it.
    """
    found: dict[tuple[str, int], list[str]] = {}
    for node in index.nodes:
        if node.name in completion.working or node.name in completion.moving:
            shapes = [str(index.shape(value.name or "")) for value in node.inputs if value]
            attributes = sorted((a.name, str(a.value)) for a in node.attributes.values())
            key = f"{node.op_type}{attributes}{shapes}"
            found.setdefault((key, 0), []).append(node.name or "")
    groups = tuple(
        Group(pattern, role, index.node[names[0]].op_type, tuple(names))
        for (pattern, role), names in found.items()
    )
    return Grouping(groups, len(groups), len(groups))
