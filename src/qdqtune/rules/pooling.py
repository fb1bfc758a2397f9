"""Pooling and resizing of what is quantized."""

from __future__ import annotations

from qdqtune.qdq.dialect import Output
from qdqtune.qdq.units import role_rule
from qdqtune.rules.draft import Draft
from qdqtune.rules.rule import Rule

_NAME = "pool or resize"
_OPS = ("AveragePool", "GlobalAveragePool", "MaxPool", "Resize")


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided(*_OPS)):
        if not all(map(draft.is_integer, draft.activations(node))):
            continue
        keeps_float = role_rule(draft.completion.dialect, node).output is Output.FLOAT
        if not keeps_float or draft.leads_to_integers(node.outputs[0].name or ""):
            draft.choose(node, _NAME, "what it reads is quantized")


rule = Rule(_NAME, "Between quantized ops it handles a quarter of the bytes.", _apply)
