"""Convolutional classifiers: ResNet, ConvNeXt, MobileNetV2, EfficientNet-B0 and ShuffleNetV2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qdqtune.records._errors import UsageError
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
    gelu,
    gemm,
    global_average_pool,
    image_input,
    layer_norm,
    linear,
    max_pool,
    pooled,
    relu,
    relu6,
    sigmoid_of,
    silu,
)

if TYPE_CHECKING:
    import onnx


_Block = Callable[[GraphBuilder, Value, str, int, int], Value]


def _basic_block(b: GraphBuilder, x: Value, name: str, width: int, stride: int) -> Value:
    """Two 3x3 convolutions beside a shortcut."""
    y = conv_bn(b, x, f"{name}.conv1", width, Window(3, stride), bn_name=f"{name}.bn1")
    y = relu(b, y, f"{name}.relu1")
    y = conv_bn(b, y, f"{name}.conv2", width, Window(3), bn_name=f"{name}.bn2", gain=b.branch_gain)
    y = add(b, y, _shortcut(b, x, name, width, stride), f"{name}.add")
    return relu(b, y, f"{name}.relu2")


def _bottleneck_block(b: GraphBuilder, x: Value, name: str, width: int, stride: int) -> Value:
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide, beside a shortcut."""
    y = conv_bn(b, x, f"{name}.conv1", width, bn_name=f"{name}.bn1")
    y = relu(b, y, f"{name}.relu1")
    y = conv_bn(b, y, f"{name}.conv2", width, Window(3, stride), bn_name=f"{name}.bn2")
    y = relu(b, y, f"{name}.relu2")
    y = conv_bn(b, y, f"{name}.conv3", 4 * width, bn_name=f"{name}.bn3", gain=b.branch_gain)
    y = add(b, y, _shortcut(b, x, name, 4 * width, stride), f"{name}.add")
    return relu(b, y, f"{name}.relu3")


def _shortcut(b: GraphBuilder, x: Value, name: str, channels: int, stride: int) -> Value:
    if stride == 1 and x.shape[1] == channels:
        return x
    name = f"{name}.downsample"
    return conv_bn(b, x, f"{name}.conv", channels, Window(1, stride), bn_name=f"{name}.bn")


def _resnet(
    name: str, about: str, block: _Block, default: Sequence[int]
) -> Callable[..., onnx.ModelProto]:
    """Returns a function that builds a ResNet with this many blocks per stage by default."""

    def build(
        seed: int,
        *,
        blocks: Sequence[int] = default,
        width: int = 64,
        image: int = 224,
        batch: int = 1,
        classes: int = 1000,
        folded: bool = False,
        dynamic: bool = False,
    ) -> onnx.ModelProto:
        b = GraphBuilder(name, seed, folded=folded, branches=sum(blocks), open_batch=dynamic)
        x = conv_bn(b, image_input(b, batch, image), "conv1", width, Window(7, 2), bn_name="bn1")
        x = max_pool(b, relu(b, x, "relu1"), "maxpool", Window(3, 2))
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                x = block(b, x, f"layer{stage + 1}.{index}", width * 2**stage, stride)
        return classifier(b, x, "fc", classes)

    build.__name__, build.__doc__ = name, about
    return build


resnet18 = _resnet(
    "resnet18", "ResNet-18: residual blocks of two 3x3 convolutions.", _basic_block, (2, 2, 2, 2)
)
resnet34 = _resnet(
    "resnet34", "ResNet-34: the blocks of ResNet-18, more of them.", _basic_block, (3, 4, 6, 3)
)
resnet50 = _resnet(
    "resnet50", "ResNet-50: bottleneck blocks (1x1, 3x3, 1x1).", _bottleneck_block, (3, 4, 6, 3)
)

_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


def convnext(
    seed: int,
    *,
    depths: Sequence[int] = (2, 2, 4, 2),
    dims: Sequence[int] = (48, 96, 192, 384),
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
) -> onnx.ModelProto:
    """ConvNeXt: depthwise 7x7, Transpose, LayerNorm, MLP with GELU, layer scale."""
    if len(depths) != len(dims):
        raise UsageError(
            f"convnext has {len(depths)} depths but {len(dims)} dims", "Give one each per stage."
        )
    b = GraphBuilder("convnext", seed, branches=sum(depths))
    x = image_input(b, batch, image)
    x = conv(b, x, "stem.conv", dims[0], Window(4, 4, padded=False))
    x = _norm_channels_first(b, x, "stem.norm")
    for stage, (depth, width) in enumerate(zip(depths, dims, strict=True)):
        if stage > 0:
            x = _norm_channels_first(b, x, f"downsample{stage}.norm")
            x = conv(b, x, f"downsample{stage}.conv", width, Window(2, 2, padded=False))
        for index in range(depth):
            x = _convnext_block(b, x, f"stage{stage}.{index}")
    return b.model({"logits": gemm(b, layer_norm(b, pooled(b, x), "norm"), "head", classes)})


def _norm_channels_first(b: GraphBuilder, x: Value, name: str) -> Value:
    x = b.transpose(f"{name}.channels_last", x, _TO_CHANNELS_LAST)
    x = layer_norm(b, x, name)
    return b.transpose(f"{name}.channels_first", x, _TO_CHANNELS_FIRST)


def _convnext_block(b: GraphBuilder, x: Value, name: str) -> Value:
    width = x.shape[1]
    y = conv(b, x, f"{name}.depthwise", width, Window(7, groups=width))
    y = b.transpose(f"{name}.channels_last", y, _TO_CHANNELS_LAST)
    y = layer_norm(b, y, f"{name}.norm")
    y = gelu(b, linear(b, y, f"{name}.fc1", 4 * width), f"{name}.gelu")
    y = linear(b, y, f"{name}.fc2", width)
    scale = b.weights.positive(f"{name}.layer_scale", width, size=b.branch_gain)
    y = b.node(
        "Mul",
        f"{name}.scale",
        [y, b.initializer(f"{name}.layer_scale", scale)],
        marginal=y.marginal.scaled(scale.astype(np.float64)),
    )
    return add(b, x, b.transpose(f"{name}.channels_first", y, _TO_CHANNELS_FIRST), f"{name}.add")


# Expansion, kernel, channels, blocks, stride of the first block.
_MOBILENET_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 3, 32, 3, 2),
    (6, 3, 64, 4, 2),
    (6, 3, 96, 3, 1),
    (6, 3, 160, 3, 2),
    (6, 3, 320, 1, 1),
)
_EFFICIENTNET_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)


def _whole_eighths(channels: float) -> int:
    """Return the multiple of 8 nearest to a scaled channel count, at most 10 % below it."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def _mobile_network(
    b: GraphBuilder,
    x: Value,
    stages: Sequence[tuple[int, int, int, int, int]],
    width: float,
    last: int,
    activate: Callable[[GraphBuilder, Value, str], Value],
    *,
    gain: float = 1.0,
    is_gated: bool = False,
) -> Value:
    """Adds a stem, inverted residual blocks and a last convolution with `last` channels."""
    kind = activate.__name__

    def activated(x: Value, name: str, channels: int, window: Window = POINTWISE) -> Value:
        return activate(b, conv_bn(b, x, name, channels, window, gain=gain), f"{name}.{kind}")

    def block(x: Value, name: str, channels: int, expansion: int, window: Window) -> Value:
        """Wide inside, narrow between blocks; with a shortcut if shapes allow it."""
        hidden = x.shape[1] * expansion
        y = activated(x, f"{name}.expand", hidden) if expansion > 1 else x
        y = activated(y, f"{name}.depthwise", hidden, replace(window, groups=hidden))
        if is_gated:
            y = _squeeze_excite(b, y, f"{name}.se", max(1, x.shape[1] // 4))
        if window.stride > 1 or x.shape[1] != channels:
            return conv_bn(b, y, f"{name}.project", channels)
        y = conv_bn(b, y, f"{name}.project", channels, gain=b.branch_gain)
        return add(b, x, y, f"{name}.add")

    x = conv_bn(b, x, "stem.conv", _whole_eighths(32 * width), Window(3, 2), gain=gain)
    x = activate(b, x, f"stem.{kind}")
    for stage, (expansion, kernel, channels, blocks, first_stride) in enumerate(stages):
        for index in range(blocks):
            window = Window(kernel, first_stride if index == 0 else 1)
            wide = _whole_eighths(channels * width)
            x = block(x, f"stage{stage}.{index}", wide, expansion, window)
    return activate(b, conv_bn(b, x, "head.conv", last, gain=gain), f"head.{kind}")


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
    branches = sum(blocks - 1 for _, _, _, blocks, _ in _MOBILENET_STAGES)
    b = GraphBuilder("mobilenet_v2", seed, folded=folded, branches=branches)
    x, last = image_input(b, batch, image), _whole_eighths(1280 * max(1.0, width))
    x = _mobile_network(b, x, _MOBILENET_STAGES, width, last, relu6)
    return classifier(b, x, "classifier", classes)


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
    stages = [
        (expansion, kernel, channels, math.ceil(blocks * depth), stride)
        for expansion, kernel, channels, blocks, stride in _EFFICIENTNET_STAGES
    ]
    branches = sum(blocks for _, _, _, blocks, _ in stages)
    b = GraphBuilder("efficientnet", seed, folded=folded, branches=branches)
    x, last = image_input(b, batch, image), 4 * _whole_eighths(320 * width)
    x = _mobile_network(b, x, stages, width, last, silu, gain=SILU_GAIN, is_gated=True)
    return classifier(b, x, "classifier", classes)


def _squeeze_excite(b: GraphBuilder, x: Value, name: str, squeezed: int) -> Value:
    gate = global_average_pool(b, x, f"{name}.pool")
    gate = silu(b, conv(b, gate, f"{name}.reduce", squeezed), f"{name}.silu")
    gate = conv(b, gate, f"{name}.expand", x.shape[1], gain=0.3, bias_size=1.0)
    opened = gate.marginal.through(sigmoid_of)
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
