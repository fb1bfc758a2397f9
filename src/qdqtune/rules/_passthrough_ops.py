"""Ops that only move values follow what they move."""

from __future__ import annotations

from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "moves values"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided()):
        if node.name in draft.planner.passthrough:
            draft.choose(node, _NAME, "it moves what is quantized, a quarter of the bytes")


rule = Rule(_NAME, "Between quantized ops, moving floats costs two conversions more.", _apply)
