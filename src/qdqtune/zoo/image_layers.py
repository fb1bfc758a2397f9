"""Layers on NCHW values: convolutions with and without BatchNorm, activations, pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo import marginals
from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import POINTWISE, Window, draw_convolution
from qdqtune.zoo.marginals import Marginal
from qdqtune.zoo.weights import Float32s, rounded

if TYPE_CHECKING:
    from collections.abc import Sequence

BIAS_SIZE = 0.1
"""The spread of biases, relative to that of the outputs they are added to."""

SILU_GAIN = 2.0
"""The spread before SiLU: there it is almost as straight as ReLU, which keeps estimates good."""

# BatchNorm's shift, relative to its scale. Somewhat more than half of the units active makes a deep
# stack less chaotic: errors of the estimated statistics die out, at 0 they grow with every layer.
_SHIFT = 0.25
_SHIFT_SPREAD = 0.2


def image_input(b: GraphBuilder, batch: int, image: int) -> Value:
    """Adds the input `image`, batch x 3 x image x image."""
    x = b.input("image", (batch, 3, image, image))
    return Value(x.name, x.shape, Marginal.normal(np.zeros(3), np.ones(3)))


def conv(
    b: GraphBuilder,
    x: Value,
    name: str,
    channels: int,
    window: Window = POINTWISE,
    *,
    gain: float = 1.0,
    bias_size: float = BIAS_SIZE,
) -> Value:
    """Adds a Conv with bias; its outputs have a spread of about `gain`, its bias of `bias_size`."""
    drawn = draw_convolution(b.weights, x, f"{name}.weight", channels, window, gain=gain)
    bias = b.weights.normal(f"{name}.bias", (channels,), std=bias_size)
    return _conv_node(b, x, name, drawn.weight, bias, window, drawn.biased(bias))


def conv_bn(
    b: GraphBuilder,
    x: Value,
    name: str,
    channels: int,
    window: Window = POINTWISE,
    *,
    bn_name: str = "",
    gain: float = 1.0,
    epsilon: float = 1e-5,
) -> Value:
    """Adds a Conv without bias and a BatchNormalization, or the Conv both fold into.

    Args:
        b: The builder.
        x: The input.
        name: The Conv's name.
        channels: The number of output channels.
        window: Kernel, stride, groups.
        bn_name: The BatchNormalization's name; `<name>.bn` unless given.
        gain: The spread of the outputs.
        epsilon: The BatchNormalization's epsilon.
    """
    bn_name = bn_name or f"{name}.bn"
    drawn = draw_convolution(b.weights, x, f"{name}.weight", channels, window)
    mean, var = (rounded(moment) for moment in drawn.marginal.moments)
    scale = b.weights.positive(f"{bn_name}.weight", channels, size=gain)
    shift = b.weights.normal(
        f"{bn_name}.bias", (channels,), std=_SHIFT_SPREAD * gain, centre=_SHIFT * gain
    )
    marginal = Marginal.normal(shift, scale.astype(np.float64) ** 2)
    if b.folded:
        factor = rounded(scale / np.sqrt(var.astype(np.float64) + epsilon))
        weight = drawn.weight * factor[:, None, None, None]
        return _conv_node(b, x, name, weight, shift - mean * factor, window, marginal)
    y = _conv_node(b, x, name, drawn.weight, None, window, drawn.marginal)
    arrays = {"weight": scale, "bias": shift, "running_mean": mean, "running_var": var}
    statistics = [b.initializer(f"{bn_name}.{key}", array) for key, array in arrays.items()]
    return b.node(
        "BatchNormalization", bn_name, [y, *statistics], marginal=marginal, epsilon=epsilon
    )


def _conv_node(
    b: GraphBuilder,
    x: Value,
    name: str,
    weight: Float32s,
    bias: Float32s | None,
    window: Window,
    marginal: Marginal,
) -> Value:
    inputs = [x, b.initializer(f"{name}.weight", weight)]
    if bias is not None:
        inputs.append(b.initializer(f"{name}.bias", bias))
    height, width = (window.output_size(size) for size in x.shape[2:])
    return b.node(
        "Conv",
        name,
        inputs,
        shape=(x.shape[0], len(weight), height, width),
        marginal=marginal,
        kernel_shape=[window.kernel] * 2,
        strides=[window.stride] * 2,
        pads=[window.pad] * 4,
        group=window.groups,
    )


def relu(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a Relu."""
    return b.node("Relu", name, [x], marginal=x.marginal.through(marginals.relu))


def relu6(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a Clip to 0…6."""
    bounds = [b.shared_scalar("relu6.min", 0.0), b.shared_scalar("relu6.max", 6.0)]
    return b.node("Clip", name, [x, *bounds], marginal=x.marginal.through(marginals.relu6))


def silu(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds x · Sigmoid(x)."""
    gate = b.node("Sigmoid", f"{name}.sigmoid", [x])
    return b.node("Mul", f"{name}.mul", [x, gate], marginal=x.marginal.through(marginals.silu))


def add(b: GraphBuilder, x: Value, y: Value, name: str) -> Value:
    """Adds the sum of two values of one shape."""
    return b.node("Add", name, [x, y], marginal=x.marginal.plus(y.marginal))


def concat(b: GraphBuilder, values: Sequence[Value], name: str) -> Value:
    """Adds a Concat along channels."""
    batch, _, *size = values[0].shape
    channels = sum(value.shape[1] for value in values)
    marginal = marginals.concatenated([value.marginal for value in values])
    return b.node("Concat", name, values, shape=(batch, channels, *size), marginal=marginal, axis=1)


def max_pool(
    b: GraphBuilder, x: Value, name: str, window: Window, *, marginal: Marginal | None = None
) -> Value:
    """Adds a MaxPool; its marginal is that of the largest of independent values unless given."""
    return b.node(
        "MaxPool",
        name,
        [x],
        shape=(*x.shape[:2], *(window.output_size(size) for size in x.shape[2:])),
        marginal=marginal or x.marginal.largest_of(window.kernel**2),
        kernel_shape=[window.kernel] * 2,
        strides=[window.stride] * 2,
        pads=[window.pad] * 4,
    )


def global_average_pool(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a GlobalAveragePool."""
    batch, channels, height, width = x.shape
    marginal = x.marginal.average_of(height * width)
    shape = (batch, channels, 1, 1)
    return b.node("GlobalAveragePool", name, [x], shape=shape, marginal=marginal)


def flatten(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a Flatten of an N x C x 1 x 1 value."""
    return b.node("Flatten", name, [x], shape=x.shape[:2], axis=1)
