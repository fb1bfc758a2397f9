"""ShuffleNetV2 at its four published widths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune.records.errors import UsageError
from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import POINTWISE, Window
from qdqtune.zoo.image_layers import (
    concat,
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
    x = global_average_pool(b, _conv_relu(b, x, "conv5", last), "avgpool")
    return b.model({"logits": gemm(b, flatten(b, x, "flatten"), "fc", classes)})


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
