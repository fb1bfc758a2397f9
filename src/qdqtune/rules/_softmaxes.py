"""A Softmax stays float, whatever surrounds it."""

from __future__ import annotations

from qdqtune.graph._op_classes import is_op
from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "Softmax"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided()):
        result = node.outputs[0].name or ""
        readers = [draft.index.node.get(edge.node) for edge in draft.index.readers(result)]
        if is_op(node, "Softmax"):
            draft.leave(
                node, _NAME, "its integer kernel is slower than the float one, and overflows"
            )
        elif node.name in draft.planner.passthrough and any(
            is_op(each, "Softmax") for each in readers
        ):
            draft.leave(node, _NAME, "behind it comes a Softmax, which is to read floats")


rule = Rule(
    _NAME,
    "Between Q/DQ pairs it becomes an integer kernel by itself, so that one of them has to go.",
    _apply,
)
