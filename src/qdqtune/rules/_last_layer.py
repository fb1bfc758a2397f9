"""A small last layer whose very result would be quantized stays float."""

from __future__ import annotations

from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "last layer"
_SMALL = 0.02


def _apply(draft: Draft) -> None:
    outputs = draft.index.outputs
    for node in list(draft.undecided(*WEIGHTED_OPS)):
        name = node.name or ""
        leaves = outputs.keys() & draft.planner.units[name].outputs
        others = [
            edge
            for tensor in leaves
            for edge in draft.index.readers(tensor)
            if edge.node and is_op(draft.index.node[edge.node], *WEIGHTED_OPS)
        ]
        if leaves and not others and draft.shares.get(name, 1.0) < _SMALL:
            reason = (
                "its result is the model's: 256 values of it would be left, for under 2 % of work"
            )
            draft.leave(node, _NAME, reason)


rule = Rule(
    _NAME,
    "Boxes and scores in 256 steps are what users notice first; most heads are a small part of the "
    "work.",
    _apply,
)
