"""A first layer that multiplies little stays float."""

from __future__ import annotations

import math

import onnx_ir as ir

from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.rules._placement_draft import Draft, Rule
from qdqtune.rules._small_gemms import sizes as product_sizes

_NAME = "first layer"
_LEAST_PRODUCTS = 16


def _apply(draft: Draft) -> None:
    inputs = {value.name for value in draft.index.model.graph.inputs}
    for node in list(draft.undecided(*WEIGHTED_OPS)):
        data = node.inputs[0]
        products = _products(draft, node)
        if data is None or data.name not in inputs or products is None:
            continue
        if products < _LEAST_PRODUCTS:
            reason = f"{products} multiplications per result are not worth quantizing the input"
            draft.leave(node, _NAME, reason)


def _products(draft: Draft, node: ir.Node) -> int | None:
    """How many products are summed up for one value of the result."""
    weight = node.inputs[1]
    shape = draft.index.shape(weight.name or "") if weight is not None else None
    if shape is None or None in shape or len(shape) < 2:
        return None
    sizes = [dim for dim in shape if dim is not None]
    if node.op_type == "Conv":
        return math.prod(sizes[1:])
    if node.op_type == "ConvTranspose":
        return sizes[0]
    return product_sizes(draft, node)[0]


rule = Rule(
    _NAME,
    "What is lost in the first layer no other layer can bring back; with few input channels there "
    "is nothing to gain either.",
    _apply,
)
