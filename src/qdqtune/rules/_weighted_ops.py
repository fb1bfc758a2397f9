"""Ops with weights, whole."""

from __future__ import annotations

from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "weighted op"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided(*WEIGHTED_OPS)):
        draft.choose(node, _NAME, "input and weight together make an integer kernel")


rule = Rule(
    _NAME, "Multiplications are where eight bits save time; half a unit saves none.", _apply
)
