"""Concatenation of what is quantized, under one scale where the engine wants that."""

from __future__ import annotations

from qdqtune.qdq._op_units import role_rule
from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "Concat"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("Concat")):
        tensors = draft.activations(node)
        if not any(map(draft.is_integer, tensors)):
            continue
        if draft.leads_to_integers(node.outputs[0].name or ""):
            shares = role_rule(draft.planner.dialect, node).same_scale
            how = " under one scale" if shares else ""
            draft.choose(node, _NAME, f"it joins what is quantized, for a quantized op{how}")


rule = Rule(
    _NAME,
    "Joining bytes is copying them; with a scale for each operand, engines requantize all of them.",
    _apply,
)
