"""Smoothing: before it is quantized, a product's input is divided by a factor per channel.

The rows of the weight are multiplied by the same factors, so the product stays the same. A few
channels of a transformer's activations are much larger than the others, and with one scale for all
of them little is left for the rest; weights have a scale per output, and can take that up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx.helper import make_node

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE, input_at, is_op, weight_axis
from qdqtune.qdq._encoding import Array
from qdqtune.records._placement import Edge

#: Marks the node that divides; the name of the tensor that it divides follows.
SMOOTHED = "smooths "
#: The metadata that tells how many inputs are smoothed.
SMOOTHED_INPUTS = "qdqtune.smoothed_inputs"

_PRODUCTS = ("MatMul", "Gemm")
_MOST_CHANNELS = 1 << 20


@dataclass(frozen=True)
class Smoothing:
    """How the input of products is smoothed.

    Attributes:
        factors: What each of its channels is divided by; all are positive.
        low: The smallest value of the divided input.
        high: The largest.
    """

    factors: Array
    low: float
    high: float

    @property
    def inverse(self) -> Array:
        """What a node that divides the input multiplies it by."""
        return 1.0 / self.factors

    def multiplied(self, weight: Array, axis: int) -> Array:
        """Return the weight of a product for the divided input.

        Args:
            weight: The weight.
            axis: The axis of its inputs.
        """
        return _by_channel(weight, self.factors, axis)


def dividing_node(source: str, inverse: str, divided: str) -> onnx.NodeProto:
    """Return the node that divides the channels of a tensor.

    Args:
        source: The tensor.
        inverse: The constant that it is multiplied by.
        divided: The name of the result.
    """
    node = make_node("Mul", [source, inverse], [divided], name=f"{divided}_Mul")
    node.doc_string = SMOOTHED + source
    return node


def smoothable(index: GraphIndex) -> dict[str, list[str]]:
    """Return the inputs that can be smoothed, and the names of the products that read each.

    Their last axis has the channels. The weight is a constant matrix that nothing else reads.
    """
    found: dict[str, list[str]] = {}
    for node in index.nodes:
        if not is_op(node, *_PRODUCTS) or node.attributes.get_int("transA", 0) != 0:
            continue
        data, weight = index.reads(node)[:2]
        if len(index.shape(weight) or ()) != 2 or not index.is_constant(weight):
            continue
        is_own = index.readers(weight) == (Edge(weight, node.name or "", 1),)
        if not is_own or index.read_by_body(weight) or not index.is_finite(weight):
            continue
        if not index.is_constant(data) and index.is_float(data):
            found.setdefault(data, []).append(node.name or "")
    return found


def input_axis(node: ir.Node) -> int:
    """Return the axis of a product's weight, a matrix, along which the inputs lie."""
    return 1 - weight_axis(node) % 2


@dataclass(frozen=True)
class MultipliedWeight:
    """The weight of a smoothed product in a model.

    Attributes:
        factors: What its inputs were multiplied by.
        axis: The axis of its inputs.
    """

    factors: Array
    axis: int

    def divided(self, weight: Array) -> Array:
        """Return the weight for the input as it was."""
        return _by_channel(weight, 1.0 / self.factors, self.axis)

    def fits(self, weight: ir.TensorProtocol | None) -> bool:
        """Whether a weight can be it; strangers' files may lie."""
        dims = () if weight is None else tuple(weight.shape.numpy())
        return len(dims) == 2 and dims[self.axis] == self.factors.size


@dataclass(frozen=True)
class SmoothedProduct:
    """A smoothed product of quantized operands in a model.

    Attributes:
        divides: The node that divides its input.
        pair: The DequantizeLinear nodes of its input and of its weight.
        quantizer: The QuantizeLinear of its weight; None if that is stored quantized.
        weight: The constant that has the multiplied weight, quantized or not.
        multiplied: How its weight was multiplied.
    """

    divides: ir.Node
    pair: tuple[ir.Node, ir.Node]
    quantizer: ir.Node | None
    weight: ir.Value
    multiplied: MultipliedWeight


def factors_of(node: ir.Node | None) -> Array | None:
    """Return what a node divides channels by; None if it doesn't smooth anything."""
    if node is None or not is_op(node, "Mul"):
        return None
    inverse = input_at(node, 1)
    constant = ir.convenience.get_const_tensor(inverse) if inverse is not None else None
    is_marked = (node.doc_string or "").startswith(SMOOTHED)
    if not is_marked or constant is None or constant.size > _MOST_CHANNELS:
        return None
    values = constant.numpy().astype("float64").reshape(-1)
    return 1.0 / values if (values > 0.0).all() else None


def smoothed_products(graph: ir.Graph) -> Iterator[SmoothedProduct]:
    """Yield the smoothed products of a model; what only looks like one is left out."""
    for node in graph:
        factors = factors_of(node)
        if factors is None:
            continue
        quantizers = (user for user, _ in node.outputs[0].uses() if is_op(user, QUANTIZE))
        for pair in (user for each in quantizers for user, _ in each.outputs[0].uses()):
            if not is_op(pair, DEQUANTIZE):
                continue
            for product, position in pair.outputs[0].uses():
                weight = input_at(product, 1)
                other = weight.producer() if weight is not None else None
                if position == 0 and is_op(product, *_PRODUCTS) and is_op(other, DEQUANTIZE):
                    assert other is not None
                    stored = input_at(other, 0)
                    maker = stored.producer() if stored is not None else None
                    quantizer = maker if is_op(maker, QUANTIZE) else None
                    values = input_at(quantizer, 0) if quantizer is not None else stored
                    multiplied = MultipliedWeight(factors, input_axis(product))
                    if values and multiplied.fits(ir.convenience.get_const_tensor(values)):
                        yield SmoothedProduct(node, (pair, other), quantizer, values, multiplied)


def _by_channel(weight: Array, factors: Array, axis: int) -> Array:
    rows = factors.reshape((-1, 1) if axis == 0 else (1, -1))
    multiplied: Array = (weight.astype("float64") * rows).astype(weight.dtype)
    return multiplied
