"""A first layer that multiplies little stays float."""

from __future__ import annotations

import math

import onnx_ir as ir

from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.rules._placement_draft import Draft, rule
from qdqtune.rules._small_gemms import product_sizes

_LEAST_PRODUCTS = 16


@rule(
    "first layer",
    "What is lost in the first layer no other layer can bring back; with few input channels there "
    "is nothing to gain either.",
)
def first_layer(draft: Draft) -> None:
    for node in draft.undecided(*WEIGHTED_OPS):
        data = node.inputs[0]
        products = _products(draft, node)
        if data is None or not data.is_graph_input() or products is None:
            continue
        if products < _LEAST_PRODUCTS:
            reason = f"{products} multiplications per result are not worth quantizing the input"
            draft.leave(node, reason)


def _products(draft: Draft, node: ir.Node) -> int | None:
    """Return the number of products that are summed up for one value of the result."""
    sizes = draft.index.fixed_shape_read(node, 1)
    if sizes is None or len(sizes) < 2:
        return None
    if node.op_type == "Conv":
        return math.prod(sizes[1:])
    if node.op_type == "ConvTranspose":
        return sizes[0]
    return product_sizes(draft, node)[0]
