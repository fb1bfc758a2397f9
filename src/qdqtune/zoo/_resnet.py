"""ResNet-18, -34 and -50 of any depth, and ConvNeXt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qdqtune.records._errors import UsageError
from qdqtune.zoo._builder import GraphBuilder, Value
from qdqtune.zoo._layers import (
    Window,
    add,
    classifier,
    conv,
    conv_bn,
    flatten,
    gelu,
    gemm,
    global_average_pool,
    image_input,
    layer_norm,
    linear,
    max_pool,
    relu,
)

if TYPE_CHECKING:
    import onnx


Block = Callable[[GraphBuilder, Value, str, int, int], Value]
Architecture = Callable[..., "onnx.ModelProto"]


def basic_block(b: GraphBuilder, x: Value, name: str, width: int, stride: int) -> Value:
    """Two 3x3 convolutions beside a shortcut."""
    y = conv_bn(b, x, f"{name}.conv1", width, Window(3, stride), bn_name=f"{name}.bn1")
    y = relu(b, y, f"{name}.relu1")
    y = conv_bn(b, y, f"{name}.conv2", width, Window(3), bn_name=f"{name}.bn2", gain=b.branch_gain)
    y = add(b, y, _shortcut(b, x, name, width, stride), f"{name}.add")
    return relu(b, y, f"{name}.relu2")


def bottleneck_block(b: GraphBuilder, x: Value, name: str, width: int, stride: int) -> Value:
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


def _resnet(name: str, about: str, block: Block, default: Sequence[int]) -> Architecture:
    """Returns the function that builds a ResNet with so many blocks per stage by default."""

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
    "resnet18", "ResNet-18: residual blocks of two 3x3 convolutions.", basic_block, (2, 2, 2, 2)
)
resnet34 = _resnet(
    "resnet34", "ResNet-34: the blocks of ResNet-18, more of them.", basic_block, (3, 4, 6, 3)
)
resnet50 = _resnet(
    "resnet50", "ResNet-50: bottleneck blocks (1x1, 3x3, 1x1).", bottleneck_block, (3, 4, 6, 3)
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
            x = _block(b, x, f"stage{stage}.{index}")
    x = flatten(b, global_average_pool(b, x, "avgpool"), "flatten")
    return b.model({"logits": gemm(b, layer_norm(b, x, "norm"), "head", classes)})


def _norm_channels_first(b: GraphBuilder, x: Value, name: str) -> Value:
    x = b.transpose(f"{name}.channels_last", x, _TO_CHANNELS_LAST)
    x = layer_norm(b, x, name)
    return b.transpose(f"{name}.channels_first", x, _TO_CHANNELS_FIRST)


def _block(b: GraphBuilder, x: Value, name: str) -> Value:
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
