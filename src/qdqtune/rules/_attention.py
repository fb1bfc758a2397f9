"""Attention that the engine has no fused integer kernel for."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._op_classes import COPY_OPS, is_op
from qdqtune.rules._placement_draft import (
    Draft,
    readers_through,
    rule,
    source_through,
    sources_through,
)

_LONGEST = 512
_LEAST_HEAD, _LARGEST_HEAD = 9, 256
_BETWEEN = COPY_OPS | {"Add", "Cast", "Div", "Mul", "Where"}


@rule("attention", "Unfused, the scores go through memory in floats, and Q/DQ only add to it.")
def attention(draft: Draft) -> None:
    for softmax in draft.index.nodes:
        for node in _products(draft, softmax) if is_op(softmax, "Softmax") else ():
            reason = _unfit(draft, node, softmax)
            if reason:
                draft.leave(node, reason)


def _products(draft: Draft, softmax: ir.Node) -> list[ir.Node]:
    """Return the products of activations before and behind a Softmax."""
    before = sources_through(draft.index, softmax, _BETWEEN)
    behind = readers_through(draft.index, softmax.outputs[0].name or "", COPY_OPS | {"Cast"})
    return [
        node
        for node in (*before, *behind)
        if is_op(node, "MatMul") and not draft.index.is_constant(draft.index.reads(node)[1])
    ]


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
    """Return the size of a head: the terms of the first product, the columns of the second."""
    first, second = draft.index.shape_read(node, 0), draft.index.shape_read(node, 1)
    if not first or not second:
        return None
    source = source_through(draft.index, draft.index.reads(node)[0], COPY_OPS | {"Cast"})
    is_second = first[-1] == length and is_op(source, "Softmax")
    return second[-1] if is_second else first[-1]
