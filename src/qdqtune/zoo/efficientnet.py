"""EfficientNet-B0, scalable in width and depth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdqtune.zoo import marginals
from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import (
    SILU_GAIN,
    add,
    conv,
    conv_bn,
    flatten,
    global_average_pool,
    image_input,
    silu,
)
from qdqtune.zoo.mobilenet import whole_eighths
from qdqtune.zoo.token_layers import gemm

if TYPE_CHECKING:
    import onnx

# Expansion, kernel, stride of the first block, channels, blocks.
_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def efficientnet(
    seed: int,
    *,
    width: float = 1.0,
    depth: float = 1.0,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
    folded: bool = False,
) -> onnx.ModelProto:
    """EfficientNet-B0: depthwise convolutions, squeeze and excitation, SiLU."""
    stage_blocks = [math.ceil(blocks * depth) for *_, blocks in _STAGES]
    b = GraphBuilder("efficientnet", seed, folded=folded, branches=sum(stage_blocks))
    x = image_input(b, batch, image)
    x = conv_bn(b, x, "stem.conv", whole_eighths(32 * width), Window(3, 2), gain=SILU_GAIN)
    x = silu(b, x, "stem.silu")
    for stage, (expansion, kernel, first_stride, channels, _) in enumerate(_STAGES):
        for index in range(stage_blocks[stage]):
            stride = first_stride if index == 0 else 1
            name = f"stage{stage}.{index}"
            x = _mb_conv(b, x, name, whole_eighths(channels * width), expansion, kernel, stride)
    x = conv_bn(b, x, "head.conv", 4 * whole_eighths(320 * width), gain=SILU_GAIN)
    x = global_average_pool(b, silu(b, x, "head.silu"), "avgpool")
    return b.model({"logits": gemm(b, flatten(b, x, "flatten"), "classifier", classes)})


def _mb_conv(
    b: GraphBuilder, x: Value, name: str, channels: int, expansion: int, kernel: int, stride: int
) -> Value:
    hidden = x.shape[1] * expansion
    y = x
    if expansion > 1:
        y = conv_bn(b, y, f"{name}.expand", hidden, gain=SILU_GAIN)
        y = silu(b, y, f"{name}.expand.silu")
    window = Window(kernel, stride, groups=hidden)
    y = conv_bn(b, y, f"{name}.depthwise", hidden, window, gain=SILU_GAIN)
    y = silu(b, y, f"{name}.depthwise.silu")
    y = _squeeze_excite(b, y, f"{name}.se", max(1, x.shape[1] // 4))
    if stride > 1 or x.shape[1] != channels:
        return conv_bn(b, y, f"{name}.project", channels)
    y = conv_bn(b, y, f"{name}.project", channels, gain=b.branch_gain)
    return add(b, x, y, f"{name}.add")


def _squeeze_excite(b: GraphBuilder, x: Value, name: str, squeezed: int) -> Value:
    gate = global_average_pool(b, x, f"{name}.pool")
    gate = silu(b, conv(b, gate, f"{name}.reduce", squeezed), f"{name}.silu")
    gate = conv(b, gate, f"{name}.expand", x.shape[1], gain=0.3, bias_size=1.0)
    opened = gate.marginal.through(marginals.sigmoid)
    gate = b.node("Sigmoid", f"{name}.sigmoid", [gate], marginal=opened)
    scaled = x.marginal.scaled(opened.moments[0])
    return b.node("Mul", f"{name}.scale", [x, gate], marginal=scaled)
