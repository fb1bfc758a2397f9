"""ResNet-18, -34 and -50, and any other depth through `blocks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import (
    add,
    conv_bn,
    flatten,
    global_average_pool,
    image_input,
    max_pool,
    relu,
)
from qdqtune.zoo.token_layers import gemm

if TYPE_CHECKING:
    import onnx

Block = Callable[[GraphBuilder, Value, str, int, int], Value]


def resnet18(
    seed: int,
    *,
    blocks: Sequence[int] = (2, 2, 2, 2),
    width: int = 64,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
    folded: bool = False,
    dynamic: bool = False,
) -> onnx.ModelProto:
    """ResNet-18: residual blocks of two 3x3 convolutions."""
    b = _builder("resnet18", seed, blocks, folded=folded, dynamic=dynamic)
    x = image_input(b, batch, image)
    return _resnet(b, x, basic_block, blocks, width, classes)


def resnet34(
    seed: int,
    *,
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
    folded: bool = False,
    dynamic: bool = False,
) -> onnx.ModelProto:
    """ResNet-34: the blocks of ResNet-18, more of them."""
    b = _builder("resnet34", seed, blocks, folded=folded, dynamic=dynamic)
    x = image_input(b, batch, image)
    return _resnet(b, x, basic_block, blocks, width, classes)


def resnet50(
    seed: int,
    *,
    blocks: Sequence[int] = (3, 4, 6, 3),
    width: int = 64,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
    folded: bool = False,
    dynamic: bool = False,
) -> onnx.ModelProto:
    """ResNet-50: bottleneck blocks (1x1, 3x3, 1x1)."""
    b = _builder("resnet50", seed, blocks, folded=folded, dynamic=dynamic)
    x = image_input(b, batch, image)
    return _resnet(b, x, bottleneck_block, blocks, width, classes)


def _builder(
    name: str, seed: int, blocks: Sequence[int], *, folded: bool, dynamic: bool
) -> GraphBuilder:
    return GraphBuilder(name, seed, folded=folded, branches=sum(blocks), open_batch=dynamic)


def _resnet(
    b: GraphBuilder, x: Value, block: Block, blocks: Sequence[int], width: int, classes: int
) -> onnx.ModelProto:
    x = conv_bn(b, x, "conv1", width, Window(7, 2), bn_name="bn1")
    x = relu(b, x, "relu1")
    x = max_pool(b, x, "maxpool", Window(3, 2))
    for stage, count in enumerate(blocks):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(b, x, f"layer{stage + 1}.{index}", width * 2**stage, stride)
    x = flatten(b, global_average_pool(b, x, "avgpool"), "flatten")
    return b.model({"logits": gemm(b, x, "fc", classes)})


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
