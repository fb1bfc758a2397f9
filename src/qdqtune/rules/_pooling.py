"""Pooling and resizing of what is quantized."""

from __future__ import annotations

from qdqtune.qdq._dialect import Output
from qdqtune.qdq._op_units import role_rule
from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "pool or resize"
_OPS = ("AveragePool", "GlobalAveragePool", "MaxPool", "Resize")


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided(*_OPS)):
        tensors = draft.activations(node)
        if not all(map(draft.is_integer, tensors)):
            continue
        keeps_float = role_rule(draft.planner.dialect, node).output is Output.FLOAT
        costs_nothing = not keeps_float and all(map(draft.is_written, tensors))
        if costs_nothing or draft.leads_to_integers(node.outputs[0].name or ""):
            draft.choose(node, _NAME, "what it reads is quantized")


rule = Rule(_NAME, "Between quantized ops it handles a quarter of the bytes.", _apply)
