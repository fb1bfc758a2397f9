"""Products and LSTMs whose input is quantized at run time, if that was asked for."""

from __future__ import annotations

import math

import onnx_ir as ir

from qdqtune.graph._op_classes import is_op
from qdqtune.rules._placement_draft import Draft, rule

# Seen with ONNX Runtime 1.31 on AVX-512 VNNI, one thread, from 1 to 512 rows by 32x32 to 768x3072:
# over float at least 1.04 from this many multiplications on, and mostly 0.8 to 0.96 below; a single
# row by 384x384, which is left float, gave 1.4.
_LEAST_MULTIPLICATIONS = 2**18
# The same for one row, if the number of rows is not known.
_LEAST_WEIGHTS = 2**16
# The same for an LSTM, whose hidden state is one row in every step. Seen with inputs and states of
# 16, 32, 64, 128 and 256, 64 steps: 0.7, 0.9, 1.5, 2.0 and 3.0 over float.
_LEAST_LSTM_WEIGHTS = 2**15


@rule("dynamic", "The input gets its scale at run time: no data is needed, and nothing is clipped.")
def dynamic_products(draft: Draft) -> None:
    if not draft.constraints.dynamic:
        return
    for node in draft.can_be_dynamic():
        if _is_small(draft, node):
            draft.leave(node, "it is so small that its float kernel is as fast")
        else:
            draft.make_dynamic(node, "its input is quantized at run time")
    for node in draft.undecided("MatMul"):
        # Seen with the same: with these products between Q and DQ, a BERT of 4 layers was 2.79 and
        # 2.06 over float (384 and 128 wide), and 2.77 and 2.19 without.
        if not draft.index.reads_constant(node):
            draft.leave(node, "both operands are computed: it would need calibration")


def _is_small(draft: Draft, node: ir.Node) -> bool:
    if is_op(node, "LSTM"):
        shapes = (draft.index.shape_read(node, position) or () for position in (1, 2))
        return sum(math.prod(size or 1 for size in shape) for shape in shapes) < _LEAST_LSTM_WEIGHTS
    weight = draft.index.shape_read(node, 1) or ()
    weights = math.prod(size or 1 for size in weight)
    result = draft.index.shape(node.outputs[0].name or "")
    if not result or None in result or not weight:
        return weights < _LEAST_WEIGHTS
    rows = math.prod(size or 1 for size in result[:-1])
    return rows * weights < _LEAST_MULTIPLICATIONS
