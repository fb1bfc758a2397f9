"""Pooling and resizing of what is quantized."""

from __future__ import annotations

from qdqtune.qdq._dialect import Output
from qdqtune.qdq._op_units import role_rule
from qdqtune.rules._placement_draft import Draft, rule


@rule("pool or resize", "Between quantized ops it handles a quarter of the bytes.")
def pooling(draft: Draft) -> None:
    for node in draft.undecided("AveragePool", "GlobalAveragePool", "MaxPool", "Resize"):
        tensors = draft.activations(node)
        if not all(map(draft.is_integer, tensors)):
            continue
        keeps_float = role_rule(draft.planner.dialect, node).output is Output.FLOAT
        costs_nothing = not keeps_float and all(map(draft.is_written, tensors))
        if costs_nothing or draft.leads_to_integers(node.outputs[0].name or ""):
            draft.choose(node, "what it reads is quantized")
