"""Products with a vector."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "GEMV"


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("MatMul", "Gemm")):
        if _is_vector(draft, node):
            draft.leave(node, _NAME, "one side is a vector: reading the weight takes all the time")


def _is_vector(draft: Draft, node: ir.Node) -> bool:
    shape = draft.index.shape(node.outputs[0].name or "")
    weight = node.inputs[1]
    if shape is None or weight is None:
        return False
    if draft.index.is_constant(weight.name or ""):
        return len(shape) < 3 and 1 in shape
    return 1 in shape[-2:]


rule = Rule(
    _NAME, "Integer tensor cores have nothing to do where every weight is used once.", _apply
)
