"""A long chain of small blocks: a graph of any number of nodes in a small file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo._builder import GraphBuilder, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

_WEIGHT_SETS = 4


def chain(seed: int, *, nodes: int = 1000, width: int = 8, image: int = 8) -> onnx.ModelProto:
    """Exactly `nodes` nodes: residual, bottleneck and gated blocks that share a few weights."""
    b = GraphBuilder("chain", seed)
    x = b.input("image", (1, width, image, image))
    weight_sets = [_Weights(b, f"weights{index}", width) for index in range(_WEIGHT_SETS)]
    index, left = 0, nodes
    while True:
        block, length = _BLOCKS[index % len(_BLOCKS)]
        if length > left:
            break
        x = block(b, x, f"block{index}", weight_sets[index % _WEIGHT_SETS])
        index, left = index + 1, left - length
    for rest in range(left):
        x = b.node("Relu", f"rest{rest}", [x])
    return b.model({"features": x})


class _Weights:
    """The initializers that a block reads."""

    def __init__(self, b: GraphBuilder, name: str, width: int) -> None:
        def kernel(part: str, in_channels: int, side: int) -> list[Value]:
            std = float(1 / np.sqrt(in_channels * side**2))
            shape = (width, in_channels, side, side)
            weight = b.weights.normal(f"{name}.{part}.weight", shape, std=std, channel_axis=0)
            bias = b.weights.normal(f"{name}.{part}.bias", (width,), std=0.1)
            return b.parameters(f"{name}.{part}", weight=weight, bias=bias)

        self.spatial = kernel("spatial", width, 3)
        self.pointwise = kernel("pointwise", width, 1)
        self.depthwise = kernel("depthwise", 1, 3)
        scale = b.weights.positive(f"{name}.norm.weight", width, size=1.0)
        shift = b.weights.normal(f"{name}.norm.bias", (width,), std=0.1)
        self.norm = b.parameters(f"{name}.norm", weight=scale, bias=shift)


def _residual(b: GraphBuilder, x: Value, name: str, weights: _Weights) -> Value:
    y = b.node("Conv", f"{name}.conv1", [x, *weights.spatial], pads=[1] * 4)
    y = b.node("Relu", f"{name}.relu1", [y])
    y = b.node("Conv", f"{name}.conv2", [y, *weights.spatial], pads=[1] * 4)
    y = b.node("Add", f"{name}.add", [x, y])
    y = b.node("InstanceNormalization", f"{name}.norm", [y, *weights.norm])
    return b.node("Relu", f"{name}.relu2", [y])


def _bottleneck(b: GraphBuilder, x: Value, name: str, weights: _Weights) -> Value:
    y = b.node("Conv", f"{name}.conv1", [x, *weights.pointwise])
    y = b.node("Relu", f"{name}.relu1", [y])
    y = b.node("Conv", f"{name}.conv2", [y, *weights.spatial], pads=[1] * 4)
    y = b.node("Relu", f"{name}.relu2", [y])
    y = b.node("Conv", f"{name}.conv3", [y, *weights.pointwise])
    y = b.node("Add", f"{name}.add", [x, y])
    return b.node("InstanceNormalization", f"{name}.norm", [y, *weights.norm])


def _gated(b: GraphBuilder, x: Value, name: str, weights: _Weights) -> Value:
    groups = x.shape[1]
    y = b.node("Conv", f"{name}.depthwise", [x, *weights.depthwise], pads=[1] * 4, group=groups)
    gate = b.node("Conv", f"{name}.gate", [y, *weights.pointwise])
    gate = b.node("Sigmoid", f"{name}.sigmoid", [gate])
    y = b.node("Mul", f"{name}.mul", [y, gate])
    y = b.node("Add", f"{name}.add", [x, y])
    return b.node("InstanceNormalization", f"{name}.norm", [y, *weights.norm])


# Each block with the number of nodes it adds. The norm at its end keeps values in range at any
# length.
_BLOCKS: tuple[tuple[Callable[[GraphBuilder, Value, str, _Weights], Value], int], ...] = (
    (_residual, 6),
    (_bottleneck, 7),
    (_gated, 6),
)
