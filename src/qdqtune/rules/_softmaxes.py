"""A Softmax stays float, whatever surrounds it."""

from __future__ import annotations

from qdqtune.graph._op_classes import is_op
from qdqtune.rules._placement_draft import Draft, rule


@rule(
    "Softmax",
    "Between Q/DQ pairs it becomes an integer kernel by itself, so that one of them has to go.",
)
def softmaxes(draft: Draft) -> None:
    for node in draft.undecided():
        readers = draft.index.readers(node.outputs[0].name or "")
        feeds_softmax = any(is_op(draft.index.node.get(edge.node), "Softmax") for edge in readers)
        if is_op(node, "Softmax"):
            draft.leave(node, "its integer kernel is slower than the float one, and overflows")
        elif node.name in draft.planner.passthrough and feeds_softmax:
            draft.leave(node, "behind it comes a Softmax, which is to read floats")
