"""Mobile convolutional networks: MobileNetV2, EfficientNet-B0 and ShuffleNetV2."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from qdqtune.records._errors import UsageError
from qdqtune.zoo import _marginals as marginals
from qdqtune.zoo._builder import GraphBuilder, Value
from qdqtune.zoo._layers import (
    POINTWISE,
    SILU_GAIN,
    Window,
    add,
    classifier,
    concat,
    conv,
    conv_bn,
    global_average_pool,
    image_input,
    max_pool,
    relu,
    relu6,
    silu,
)

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


@dataclass(frozen=True)
class _Block:
    """How the blocks of a network are activated, and whether they have squeeze and excitation."""

    activate: Callable[[GraphBuilder, Value, str], Value]
    gain: float = 1.0
    is_gated: bool = False

    def conv(
        self, b: GraphBuilder, x: Value, name: str, channels: int, window: Window = POINTWISE
    ) -> Value:
        """A convolution, BatchNorm and the activation."""
        y = conv_bn(b, x, name, channels, window, gain=self.gain)
        return self.activate(b, y, f"{name}.{self.activate.__name__}")

    def inverted_residual(
        self, b: GraphBuilder, x: Value, name: str, channels: int, expansion: int, window: Window
    ) -> Value:
        """Wide inside, narrow between blocks; the shortcut is there where shapes allow it."""
        hidden = x.shape[1] * expansion
        y = self.conv(b, x, f"{name}.expand", hidden) if expansion > 1 else x
        y = self.conv(b, y, f"{name}.depthwise", hidden, replace(window, groups=hidden))
        if self.is_gated:
            y = _squeeze_excite(b, y, f"{name}.se", max(1, x.shape[1] // 4))
        if window.stride > 1 or x.shape[1] != channels:
            return conv_bn(b, y, f"{name}.project", channels)
        y = conv_bn(b, y, f"{name}.project", channels, gain=b.branch_gain)
        return add(b, x, y, f"{name}.add")


_MOBILENET = _Block(relu6)
_EFFICIENTNET = _Block(silu, SILU_GAIN, is_gated=True)


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
            window = Window(3, first_stride if index == 0 else 1)
            name = f"stage{stage}.{index}"
            wide = whole_eighths(channels * width)
            x = _MOBILENET.inverted_residual(b, x, name, wide, expansion, window)
    x = conv_bn(b, x, "head.conv", whole_eighths(1280 * max(1.0, width)))
    return classifier(b, relu6(b, x, "head.relu6"), "classifier", classes)


# Expansion, kernel, stride of the first block, channels, blocks.
_EFFICIENTNET_STAGES = (
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
    stage_blocks = [math.ceil(blocks * depth) for *_, blocks in _EFFICIENTNET_STAGES]
    b = GraphBuilder("efficientnet", seed, folded=folded, branches=sum(stage_blocks))
    x = image_input(b, batch, image)
    x = conv_bn(b, x, "stem.conv", whole_eighths(32 * width), Window(3, 2), gain=SILU_GAIN)
    x = silu(b, x, "stem.silu")
    for stage, (expansion, kernel, first_stride, channels, _) in enumerate(_EFFICIENTNET_STAGES):
        for index in range(stage_blocks[stage]):
            window = Window(kernel, first_stride if index == 0 else 1)
            name = f"stage{stage}.{index}"
            wide = whole_eighths(channels * width)
            x = _EFFICIENTNET.inverted_residual(b, x, name, wide, expansion, window)
    x = conv_bn(b, x, "head.conv", 4 * whole_eighths(320 * width), gain=SILU_GAIN)
    return classifier(b, silu(b, x, "head.silu"), "classifier", classes)


def _squeeze_excite(b: GraphBuilder, x: Value, name: str, squeezed: int) -> Value:
    gate = global_average_pool(b, x, f"{name}.pool")
    gate = silu(b, conv(b, gate, f"{name}.reduce", squeezed), f"{name}.silu")
    gate = conv(b, gate, f"{name}.expand", x.shape[1], gain=0.3, bias_size=1.0)
    opened = gate.marginal.through(marginals.sigmoid)
    gate = b.node("Sigmoid", f"{name}.sigmoid", [gate], marginal=opened)
    scaled = x.marginal.scaled(opened.moments[0])
    return b.node("Mul", f"{name}.scale", [x, gate], marginal=scaled)


_STEM_CHANNELS = 24
_STAGE_UNITS = (4, 8, 4)
# Channels of the three stages and of the last convolution.
_CHANNELS = {
    0.5: (48, 96, 192, 1024),
    1.0: (116, 232, 464, 1024),
    1.5: (176, 352, 704, 1024),
    2.0: (244, 488, 976, 2048),
}


def shufflenet_v2(
    seed: int,
    *,
    width: float = 0.5,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
    folded: bool = False,
) -> onnx.ModelProto:
    """ShuffleNetV2: channel split, depthwise convolutions, Concat, channel shuffle."""
    if width not in _CHANNELS:
        raise UsageError(
            f"shufflenet_v2 has no width {width}", f"Widths: {', '.join(map(str, _CHANNELS))}."
        )
    *stages, last = _CHANNELS[width]
    b = GraphBuilder("shufflenet_v2", seed, folded=folded)
    x = image_input(b, batch, image)
    x = _conv_relu(b, x, "conv1", _STEM_CHANNELS, Window(3, 2))
    x = max_pool(b, x, "maxpool", Window(3, 2))
    for stage, (channels, units) in enumerate(zip(stages, _STAGE_UNITS, strict=True), start=2):
        x = _down_unit(b, x, f"stage{stage}.0", channels)
        for index in range(1, units):
            x = _unit(b, x, f"stage{stage}.{index}")
    return classifier(b, _conv_relu(b, x, "conv5", last), "fc", classes)


def _conv_relu(
    b: GraphBuilder, x: Value, name: str, channels: int, window: Window = POINTWISE
) -> Value:
    return relu(b, conv_bn(b, x, name, channels, window), f"{name}.relu")


def _branch(b: GraphBuilder, x: Value, name: str, channels: int, stride: int) -> Value:
    y = _conv_relu(b, x, f"{name}.conv1", channels)
    y = conv_bn(b, y, f"{name}.depthwise", channels, Window(3, stride, groups=channels))
    return _conv_relu(b, y, f"{name}.conv2", channels)


def _unit(b: GraphBuilder, x: Value, name: str) -> Value:
    half = x.shape[1] // 2
    kept, worked = b.split(f"{name}.split", x, (half, half), axis=1)
    worked = _branch(b, worked, f"{name}.branch", half, 1)
    return _shuffle(b, concat(b, [kept, worked], f"{name}.concat"), f"{name}.shuffle")


def _down_unit(b: GraphBuilder, x: Value, name: str, channels: int) -> Value:
    window = Window(3, 2, groups=x.shape[1])
    kept = conv_bn(b, x, f"{name}.shortcut.depthwise", x.shape[1], window)
    kept = _conv_relu(b, kept, f"{name}.shortcut.conv", channels // 2)
    worked = _branch(b, x, f"{name}.branch", channels // 2, 2)
    return _shuffle(b, concat(b, [kept, worked], f"{name}.concat"), f"{name}.shuffle")


def _shuffle(b: GraphBuilder, x: Value, name: str) -> Value:
    batch, channels, height, width = x.shape
    y = b.reshape(f"{name}.group", x, (batch, 2, channels // 2, height, width))
    y = b.transpose(f"{name}.swap", y, (0, 2, 1, 3, 4))
    return b.reshape(f"{name}.merge", y, x.shape, x.marginal.shuffled(groups=2))
