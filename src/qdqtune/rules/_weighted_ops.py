"""Ops with weights, whole."""

from __future__ import annotations

from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.rules._placement_draft import Draft, rule


@rule("weighted op", "Multiplications are where eight bits save time; half a unit saves none.")
def weighted_ops(draft: Draft) -> None:
    for node in draft.undecided(*WEIGHTED_OPS):
        draft.choose(node, "input and weight together make an integer kernel")
