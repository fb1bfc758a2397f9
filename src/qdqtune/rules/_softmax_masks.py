"""The mask that is added before a Softmax stays float."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._op_classes import COPY_OPS, is_op
from qdqtune.rules._placement_draft import Draft, Rule
from qdqtune.rules._tracing import readers_through

_NAME = "softmax mask"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("Add", "Sum", "Where")):
        if any(is_op(reader, "Softmax") for reader in _behind(draft, node)):
            draft.leave(
                node,
                _NAME,
                "a Softmax reads what it adds to: scores, perhaps masked with huge numbers",
            )


def _behind(draft: Draft, node: ir.Node) -> list[ir.Node]:
    return readers_through(draft.index, node.outputs[0].name or "", COPY_OPS | {"Cast"})


rule = Rule(
    _NAME,
    "A mask is 0 and minus infinity, or nearly: one scale for it and the scores leaves the scores "
    "no steps.",
    _apply,
)
