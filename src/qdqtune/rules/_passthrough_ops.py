"""Ops that only move values follow what they move."""

from __future__ import annotations

from qdqtune.rules._placement_draft import Draft, rule


@rule("moves values", "Between quantized ops, moving floats costs two conversions more.")
def passthrough_ops(draft: Draft) -> None:
    for node in draft.undecided():
        if node.name in draft.planner.passthrough:
            draft.choose(node, "it moves what is quantized, a quarter of the bytes")
