"""A constant that is added to the result of a quantized op."""

from __future__ import annotations

from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "bias"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("Add")):
        constant = [draft.index.is_constant(value.name or "") for value in node.inputs if value]
        if sum(constant) != 1:
            continue
        (data,) = draft.activations(node)
        producer = draft.index.value[data].producer()
        if is_op(producer, *WEIGHTED_OPS) and draft.is_chosen(producer):
            draft.choose(node, _NAME, "it adds a bias to integers")


# Seen with ONNX Runtime 1.31: ViT 2.24 times as fast as float without, 2.36 with.
rule = Rule(
    _NAME, "A MatMul has no bias of its own: adding it in floats costs a conversion.", _apply
)
