"""A small last layer whose very result would be quantized stays float."""

from __future__ import annotations

from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.rules._placement_draft import Draft, rule

_SMALL = 0.02


@rule(
    "last layer",
    "Boxes and scores in 256 steps are what users notice first; most heads are a small part of the "
    "work.",
)
def last_layer(draft: Draft) -> None:
    for node in draft.undecided(*WEIGHTED_OPS):
        name = node.name or ""
        leaves = draft.index.outputs.keys() & draft.planner.units[name].outputs
        readers = (draft.index.node.get(e.node) for t in leaves for e in draft.index.readers(t))
        feeds_others = any(is_op(reader, *WEIGHTED_OPS) for reader in readers)
        if leaves and not feeds_others and draft.shares.get(name, 1.0) < _SMALL:
            draft.leave(
                node,
                "its result is the model's: 256 values of it would be left, for under 2 % of work",
            )
