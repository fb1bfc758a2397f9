"""Concatenation of what is quantized, under one scale where the engine wants that."""

from __future__ import annotations

from qdqtune.qdq._op_units import role_rule
from qdqtune.rules._placement_draft import Draft, rule


@rule(
    "Concat",
    "Joining bytes is copying them; with a scale for each operand, engines requantize all of them.",
)
def concats(draft: Draft) -> None:
    for node in draft.undecided("Concat"):
        joins = any(map(draft.is_integer, draft.activations(node)))
        if joins and draft.leads_to_integers(node.outputs[0].name or ""):
            how = " under one scale" if role_rule(draft.planner.dialect, node).same_scale else ""
            draft.choose(node, f"it joins what is quantized, for a quantized op{how}")
