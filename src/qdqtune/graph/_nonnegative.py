"""Tensors that can't be negative, by the ops that compute them."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import COPY_OPS, POOL_OPS, input_at, is_op
from qdqtune.graph._weights import values_of

# Ops whose results are never negative.
_NEVER_NEGATIVE = frozenset({"Abs", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus"})
# Ops that move or average the values of their first input.
_MOVES = (
    COPY_OPS | POOL_OPS | {"DepthToSpace", "Dropout", "ReduceMax", "ReduceMean", "SpaceToDepth"}
)
# Ops whose result is not negative if none of their inputs is.
_COMBINES = frozenset({"Add", "Concat", "Mean", "Min", "Mul", "Sum"})


def nonnegative_tensors(index: GraphIndex) -> frozenset[str]:
    """Return the tensors that can't be negative, whatever the inputs and weights of the model.

    Args:
        index: The model; its nodes are sorted.
    """
    found: set[str] = set()
    for node in index.nodes:
        reads = index.reads(node)
        if (
            is_op(node, *_NEVER_NEGATIVE)
            or (is_op(node, "Clip") and _clips_negatives(node))
            or (is_op(node, *_MOVES) and reads[0] in found)
            or (is_op(node, *_COMBINES) and found.issuperset(reads))
            or (is_op(node, "Max") and not found.isdisjoint(reads))
        ):
            found.update(value.name for value in node.outputs if value.name)
    return frozenset(found)


def _clips_negatives(node: ir.Node) -> bool:
    low = input_at(node, 1)
    if low is None or low.const_value is None:
        return False
    values = values_of(low.const_value)
    return bool(values.size) and bool((values >= 0).all())
