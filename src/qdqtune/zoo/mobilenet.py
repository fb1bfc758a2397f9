"""MobileNetV2: inverted residuals with linear bottlenecks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import (
    add,
    conv_bn,
    flatten,
    global_average_pool,
    image_input,
    relu6,
)
from qdqtune.zoo.token_layers import gemm

if TYPE_CHECKING:
    import onnx

# Expansion, channels, blocks, stride of the first block.
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_BRANCHES = sum(blocks - 1 for _, _, blocks, _ in _STAGES)


def whole_eighths(channels: float) -> int:
    """The multiple of 8 nearest to a scaled number of channels, never more than 10 % below it."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def mobilenet_v2(
    seed: int,
    *,
    width: float = 1.0,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
    folded: bool = False,
) -> onnx.ModelProto:
    """MobileNetV2: depthwise convolutions, Clip(0, 6), linear bottlenecks."""
    b = GraphBuilder("mobilenet_v2", seed, folded=folded, branches=_BRANCHES)
    x = image_input(b, batch, image)
    x = conv_bn(b, x, "stem.conv", whole_eighths(32 * width), Window(3, 2))
    x = relu6(b, x, "stem.relu6")
    for stage, (expansion, channels, blocks, first_stride) in enumerate(_STAGES):
        for index in range(blocks):
            x = _inverted_residual(
                b,
                x,
                f"stage{stage}.{index}",
                whole_eighths(channels * width),
                expansion,
                first_stride if index == 0 else 1,
            )
    x = conv_bn(b, x, "head.conv", whole_eighths(1280 * max(1.0, width)))
    x = global_average_pool(b, relu6(b, x, "head.relu6"), "avgpool")
    return b.model({"logits": gemm(b, flatten(b, x, "flatten"), "classifier", classes)})


def _inverted_residual(
    b: GraphBuilder, x: Value, name: str, channels: int, expansion: int, stride: int
) -> Value:
    hidden = x.shape[1] * expansion
    y = x
    if expansion > 1:
        y = conv_bn(b, y, f"{name}.expand", hidden)
        y = relu6(b, y, f"{name}.expand.relu6")
    y = conv_bn(b, y, f"{name}.depthwise", hidden, Window(3, stride, groups=hidden))
    y = relu6(b, y, f"{name}.depthwise.relu6")
    if stride > 1 or x.shape[1] != channels:
        return conv_bn(b, y, f"{name}.project", channels)
    y = conv_bn(b, y, f"{name}.project", channels, gain=b.branch_gain)
    return add(b, x, y, f"{name}.add")
