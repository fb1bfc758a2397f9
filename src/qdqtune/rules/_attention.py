"""Attention that the engine has no fused integer kernel for."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._op_classes import COPY_OPS, is_op
from qdqtune.rules._placement_draft import Draft, Rule
from qdqtune.rules._tracing import readers_through, source_through, sources_through

_NAME = "attention"
_LONGEST = 512
_LEAST_HEAD, _LARGEST_HEAD = 9, 256
_BETWEEN = COPY_OPS | {"Add", "Cast", "Div", "Mul", "Where"}


def _apply(draft: Draft) -> None:
    for softmax in draft.index.nodes:
        if not is_op(softmax, "Softmax"):
            continue
        for node in _products(draft, softmax):
            reason = _unfit(draft, node, softmax)
            if reason:
                draft.leave(node, _NAME, reason)


def _products(draft: Draft, softmax: ir.Node) -> list[ir.Node]:
    """The products of activations before and behind a Softmax."""
    before = sources_through(draft.index, softmax, _BETWEEN)
    behind = readers_through(draft.index, softmax.outputs[0].name or "", COPY_OPS | {"Cast"})
    return [node for node in (*before, *behind) if _multiplies(draft, node)]


def _multiplies(draft: Draft, node: ir.Node) -> bool:
    second = node.inputs[1] if len(node.inputs) > 1 else None
    if not is_op(node, "MatMul") or second is None:
        return False
    return not draft.index.is_constant(second.name or "")


def _unfit(draft: Draft, node: ir.Node, softmax: ir.Node) -> str:
    scores = draft.index.shape(softmax.outputs[0].name or "")
    length = scores[-1] if scores else None
    if draft.quant_type != "fp8":
        if length is not None and length > _LONGEST:
            return f"a sequence of {length} is longer than {_LONGEST}: no fused integer attention"
        return ""
    head = _head(draft, node, length)
    if head is not None and not _LEAST_HEAD <= head <= _LARGEST_HEAD:
        return f"there is no fused float8 attention for heads of {head}"
    return ""


def _head(draft: Draft, node: ir.Node, length: int | None) -> int | None:
    """The size of a head: what is summed up in the first product, the columns of the second."""
    shapes = [draft.index.shape(value.name or "") for value in node.inputs if value is not None]
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return None
    assert node.inputs[0] is not None
    source = source_through(draft.index, node.inputs[0].name or "", COPY_OPS | {"Cast"})
    is_second = shapes[0][-1] == length and is_op(source, "Softmax")
    return shapes[1][-1] if is_second else shapes[0][-1]


rule = Rule(
    _NAME, "Unfused, the scores go through memory in floats, and Q/DQ only add to it.", _apply
)
