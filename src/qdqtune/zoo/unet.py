"""U-Net: an encoder, and a decoder that sees the encoder's maps again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import (
    BIAS_SIZE,
    concat,
    conv,
    conv_bn,
    image_input,
    max_pool,
    relu,
)
from qdqtune.zoo.marginals import Marginal
from qdqtune.zoo.settings import require_multiple

if TYPE_CHECKING:
    import onnx


def unet(
    seed: int,
    *,
    levels: int = 4,
    width: int = 16,
    image: int = 128,
    batch: int = 1,
    classes: int = 2,
    folded: bool = False,
) -> onnx.ModelProto:
    """U-Net: MaxPool down, ConvTranspose up, Concat with the skipped maps."""
    require_multiple("image", image, "2**levels", 2**levels)
    b = GraphBuilder("unet", seed, folded=folded)
    x = _double_conv(b, image_input(b, batch, image), "inc", width)
    skips = []
    for level in range(1, levels + 1):
        skips.append(x)
        x = max_pool(b, x, f"down{level}.pool", Window(2, 2, padded=False))
        x = _double_conv(b, x, f"down{level}", width * 2**level)
    for level in range(levels, 0, -1):
        channels = width * 2 ** (level - 1)
        x = _conv_transpose(b, x, f"up{level}.conv_transpose", channels)
        x = concat(b, [skips.pop(), x], f"up{level}.concat")
        x = _double_conv(b, x, f"up{level}", channels)
    return b.model({"mask_logits": conv(b, x, "outc", classes)})


def _double_conv(b: GraphBuilder, x: Value, name: str, channels: int) -> Value:
    for part in ("1", "2"):
        x = conv_bn(b, x, f"{name}.conv{part}", channels, Window(3), bn_name=f"{name}.bn{part}")
        x = relu(b, x, f"{name}.relu{part}")
    return x


def _conv_transpose(b: GraphBuilder, x: Value, name: str, channels: int) -> Value:
    """Doubles the map: each input pixel becomes a 2x2 patch, patches don't overlap."""
    batch, in_channels, height, width = x.shape
    weight = b.weights.normal(
        f"{name}.weight",
        (in_channels, channels, 2, 2),
        std=1.0 / float(np.sqrt(in_channels * x.marginal.mean_square)),
        channel_axis=1,
    )
    bias = b.weights.normal(f"{name}.bias", (channels,), std=BIAS_SIZE)
    taps = weight.astype(np.float64).reshape(in_channels, channels, 4)
    mean, var = x.marginal.moments
    corner_means = np.einsum("iot,i->ot", taps, mean)
    out_var = np.einsum("iot,i->o", taps**2, var) / 4 + corner_means.var(axis=1)
    return b.node(
        "ConvTranspose",
        name,
        [x, b.initializer(f"{name}.weight", weight), b.initializer(f"{name}.bias", bias)],
        shape=(batch, channels, 2 * height, 2 * width),
        marginal=Marginal.normal(corner_means.mean(axis=1) + bias, out_var),
        kernel_shape=[2, 2],
        strides=[2, 2],
    )
