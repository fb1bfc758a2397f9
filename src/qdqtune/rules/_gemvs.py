"""Products with a vector."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.rules._placement_draft import Draft, rule


@rule("GEMV", "Integer tensor cores have nothing to do where every weight is used once.")
def gemvs(draft: Draft) -> None:
    for node in draft.undecided("MatMul", "Gemm"):
        if _is_vector(draft, node):
            draft.leave(node, "one side is a vector: reading the weight takes all the time")


def _is_vector(draft: Draft, node: ir.Node) -> bool:
    shape = draft.index.shape(node.outputs[0].name or "")
    if shape is None:
        return False
    if draft.index.is_constant(draft.index.reads(node)[1]):
        return len(shape) < 3 and 1 in shape
    return 1 in shape[-2:]
