"""Additions of two activations, where both are integers already."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._op_units import role_rule
from qdqtune.rules._placement_draft import Draft, rule


# Seen with ONNX Runtime 1.31: BERT 1.64 times as fast as float without, 2.11 with. With TensorRT
# 8.6, most of what a ResNet-18 gains over float16 is lost without.
@rule("residual Add", "A float Add between integer kernels costs three conversions.")
def residual_adds(draft: Draft) -> None:
    for node in draft.undecided("Add"):
        if draft.index.reads_constant(node):
            continue
        if role_rule(draft.planner.dialect, node).joins_producer:
            _join(draft, node)
        elif all(map(draft.is_integer, draft.activations(node))):
            draft.choose(node, "both sides are quantized")


def _join(draft: Draft, node: ir.Node) -> None:
    """Quantize the side that does not fuse into the op before it."""
    for name in draft.index.reads(node):
        producer = draft.index.value[name].producer()
        fuses = is_op(producer, *WEIGHTED_OPS) and len(draft.index.readers(name)) == 1
        if producer is not None and fuses and draft.is_chosen(producer):
            reason = f"one side is added inside {producer.op_type}: the other is quantized"
            draft.choose(node, reason)  # the first one stands
