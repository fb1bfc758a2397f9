"""ConvNeXt: depthwise convolutions with LayerNorm and an MLP on channels-last values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.records.errors import UsageError
from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import add, conv, flatten, global_average_pool, image_input
from qdqtune.zoo.token_layers import gelu, gemm, layer_norm, linear

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

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
