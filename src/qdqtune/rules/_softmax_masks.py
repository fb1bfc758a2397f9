"""The mask that is added before a Softmax stays float."""

from __future__ import annotations

from qdqtune.graph._op_classes import COPY_OPS, is_op
from qdqtune.rules._placement_draft import Draft, readers_through, rule


@rule(
    "softmax mask",
    "A mask is 0 and minus infinity, or nearly: one scale for it and the scores leaves the scores "
    "no steps.",
)
def softmax_masks(draft: Draft) -> None:
    for node in draft.undecided("Add", "Sum", "Where"):
        behind = readers_through(draft.index, node.outputs[0].name or "", COPY_OPS | {"Cast"})
        if any(is_op(reader, "Softmax") for reader in behind):
            draft.leave(
                node, "a Softmax reads what it adds to: scores, perhaps masked with huge numbers"
            )
