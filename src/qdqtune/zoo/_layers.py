"""Layers: convolutions, activations and pools on NCHW values.

Also Linear, LayerNorm and attention on channels-last values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qdqtune.records._errors import UsageError
from qdqtune.zoo._builder import (
    Float32s,
    Float64s,
    GraphBuilder,
    Marginal,
    Value,
    concatenated,
    rounded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx


def relu_of(x: Float64s) -> Float64s:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def relu6_of(x: Float64s) -> Float64s:
    """Clips to 0…6."""
    return np.clip(x, 0.0, 6.0)


def sigmoid_of(x: Float64s) -> Float64s:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-x))


def silu_of(x: Float64s) -> Float64s:
    """SiLU: x · sigmoid(x)."""
    return x * sigmoid_of(x)


def gelu_of(x: Float64s) -> Float64s:
    """GELU in its tanh form, which is good enough for an estimate."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


@dataclass(frozen=True)
class Window:
    """A square window that slides over a map.

    Attributes:
        kernel: Its side.
        stride: Its step.
        groups: The number of channel groups of a Conv.
        padded: Whether the map is padded with `kernel // 2` zeros.
    """

    kernel: int = 1
    stride: int = 1
    groups: int = 1
    padded: bool = True

    @property
    def pad(self) -> int:
        """The number of zeros on each side."""
        return self.kernel // 2 if self.padded else 0

    @property
    def attributes(self) -> dict[str, list[int]]:
        """The attributes of an op with this window."""
        sides = {"kernel_shape": [self.kernel] * 2, "strides": [self.stride] * 2}
        return {**sides, "pads": [self.pad] * 4}

    def output_sizes(self, x: Value) -> list[int]:
        """Return the height and width of the output."""
        return [self.output_size(size) for size in x.shape[2:]]

    def output_size(self, size: int) -> int:
        """Return the side of the output map.

        Raises:
            UsageError: If the output would be empty.
        """
        room = size + 2 * self.pad - self.kernel
        if room < 0:
            raise UsageError(
                f"a map of side {size} is too small for a window of side {self.kernel}",
                "Choose a larger image.",
            )
        return room // self.stride + 1

    def presence(self, size: int) -> Float64s:
        """Return how often each tap of the kernel reads the map, not the zeros around it."""
        starts = np.arange(self.output_size(size)) * self.stride - self.pad
        reads = starts[:, None] + np.arange(self.kernel)
        inside: Float64s = ((reads >= 0) & (reads < size)).mean(axis=0)
        return inside


POINTWISE = Window()


def _draw_convolution(
    b: GraphBuilder, x: Value, name: str, channels: int, window: Window, gain: float = 1.0
) -> tuple[Float32s, Marginal]:
    """Draws a weight so that the outputs have a spread of about `gain`; returns both."""
    _, in_channels, height, width = x.shape
    groups = window.groups
    presence = np.outer(window.presence(height), window.presence(width)).ravel()
    fan_in = in_channels // groups * float(presence.sum())
    weight = b.weights.normal(
        f"{name}.weight",
        (channels, in_channels // groups, window.kernel, window.kernel),
        std=gain / float(np.sqrt(fan_in * x.marginal.mean_square)),
        channel_axis=0,
    )
    taps = weight.astype(np.float64).reshape(groups, channels // groups, in_channels // groups, -1)
    mean, var = (
        np.broadcast_to(moment, in_channels).reshape(groups, -1) for moment in x.marginal.moments
    )
    squares = taps**2
    out_mean = np.einsum("goi,gi->go", taps @ presence, mean)
    # A tap that sometimes reads padding adds the variance of its presence.
    out_var = np.einsum("goi,gi->go", squares @ presence, var)
    out_var += np.einsum("goi,gi->go", squares @ (presence * (1 - presence)), mean**2)
    return weight, Marginal.normal(out_mean.ravel(), out_var.ravel())


BIAS_SIZE = 0.1
"""The spread of biases, relative to that of the outputs they are added to."""

SILU_GAIN = 2.0
"""The spread before SiLU: there it is almost as linear as ReLU, which keeps estimates accurate."""

# BatchNorm's shift, relative to its scale. With somewhat more than half of the units active, a deep
# stack is less chaotic: errors of the estimated statistics decay; at 0 they grow with every layer.
_SHIFT = 0.25
_SHIFT_SPREAD = 0.2


def require_multiple(name: str, value: int, of_name: str, of: int) -> None:
    """Rejects a setting that is not a multiple of another one."""
    if value % of:
        raise UsageError(
            f"{name}={value} is not a multiple of {of_name}={of}", f"Choose {name} or {of_name} so."
        )


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
    weight, marginal = _draw_convolution(b, x, name, channels, window, gain)
    bias = b.weights.normal(f"{name}.bias", (channels,), std=bias_size)
    mean, var = marginal.moments
    return _conv_node(
        b, x, name, window, Marginal.normal(mean + bias, var), weight=weight, bias=bias
    )


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
    """Adds a Conv without bias and a BatchNormalization, or the Conv that both are folded into.

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
    weight, drawn = _draw_convolution(b, x, name, channels, window)
    mean, var = (rounded(moment) for moment in drawn.moments)
    scale = b.weights.positive(f"{bn_name}.weight", channels, size=gain)
    shift = b.weights.normal(
        f"{bn_name}.bias", (channels,), std=_SHIFT_SPREAD * gain, centre=_SHIFT * gain
    )
    marginal = Marginal.normal(shift, scale.astype(np.float64) ** 2)
    if b.folded:
        factor = rounded(scale / np.sqrt(var.astype(np.float64) + epsilon))
        weight = weight * factor[:, None, None, None]
        bias = shift - mean * factor
        return _conv_node(b, x, name, window, marginal, weight=weight, bias=bias)
    y = _conv_node(b, x, name, window, drawn, weight=weight)
    statistics = b.parameters(bn_name, weight=scale, bias=shift, running_mean=mean, running_var=var)
    return b.node(
        "BatchNormalization", bn_name, [y, *statistics], marginal=marginal, epsilon=epsilon
    )


def _conv_node(
    b: GraphBuilder, x: Value, name: str, window: Window, marginal: Marginal, **arrays: Float32s
) -> Value:
    return b.node(
        "Conv",
        name,
        [x, *b.parameters(name, **arrays)],
        shape=(x.shape[0], len(arrays["weight"]), *window.output_sizes(x)),
        marginal=marginal,
        **window.attributes,
        group=window.groups,
    )


def relu(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a Relu."""
    return b.node("Relu", name, [x], marginal=x.marginal.through(relu_of))


def relu6(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a Clip to 0…6."""
    bounds = [b.shared_scalar("relu6.min", 0.0), b.shared_scalar("relu6.max", 6.0)]
    return b.node("Clip", name, [x, *bounds], marginal=x.marginal.through(relu6_of))


def silu(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds x · Sigmoid(x)."""
    gate = b.node("Sigmoid", f"{name}.sigmoid", [x])
    return b.node("Mul", f"{name}.mul", [x, gate], marginal=x.marginal.through(silu_of))


def add(b: GraphBuilder, x: Value, y: Value, name: str) -> Value:
    """Adds the sum of two values of the same shape."""
    return b.node("Add", name, [x, y], marginal=x.marginal.plus(y.marginal))


def concat(b: GraphBuilder, values: Sequence[Value], name: str) -> Value:
    """Adds a Concat along channels."""
    batch, _, *size = values[0].shape
    channels = sum(value.shape[1] for value in values)
    marginal = concatenated([value.marginal for value in values])
    return b.node("Concat", name, values, shape=(batch, channels, *size), marginal=marginal, axis=1)


def max_pool(
    b: GraphBuilder, x: Value, name: str, window: Window, *, marginal: Marginal | None = None
) -> Value:
    """Adds a MaxPool; its marginal is that of the largest of independent values unless given."""
    return b.node(
        "MaxPool",
        name,
        [x],
        shape=(*x.shape[:2], *window.output_sizes(x)),
        marginal=marginal or x.marginal.largest_of(window.kernel**2),
        **window.attributes,
    )


def global_average_pool(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a GlobalAveragePool."""
    batch, channels, height, width = x.shape
    marginal = x.marginal.average_of(height * width)
    shape = (batch, channels, 1, 1)
    return b.node("GlobalAveragePool", name, [x], shape=shape, marginal=marginal)


def pooled(b: GraphBuilder, x: Value) -> Value:
    """Adds the average over each map, as a vector."""
    return flatten(b, global_average_pool(b, x, "avgpool"), "flatten")


def classifier(b: GraphBuilder, x: Value, name: str, classes: int) -> onnx.ModelProto:
    """Finishes a model with the average over each map and a Gemm to the logits."""
    return b.model({"logits": gemm(b, pooled(b, x), name, classes)})


def flatten(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds a Flatten of an N x C x 1 x 1 value."""
    return b.node("Flatten", name, [x], shape=x.shape[:2], axis=1)


SHARPNESS = 1.3
"""The spread of queries and keys; above 1, so that attention selects few tokens."""

# Number of independent tokens that an attention's output averages over: more in the first layers,
# but tokens become more similar with depth.
_INDEPENDENT_TOKENS = 3


def _draw_linear(
    b: GraphBuilder, x: Value, name: str, width: int, gain: float, *, transposed: bool
) -> tuple[Float32s, Float32s, Marginal]:
    in_width = x.shape[-1]
    weight = b.weights.normal(
        f"{name}.weight",
        (width, in_width) if transposed else (in_width, width),
        std=gain / float(np.sqrt(in_width * x.marginal.mean_square)),
        channel_axis=0 if transposed else 1,
    )
    bias = b.weights.normal(f"{name}.bias", (width,), std=BIAS_SIZE * gain)
    rows = (weight if transposed else weight.T).astype(np.float64)
    mean, var = (np.broadcast_to(moment, in_width) for moment in x.marginal.moments)
    return weight, bias, Marginal.normal(rows @ mean + bias, rows**2 @ var)


def linear(b: GraphBuilder, x: Value, name: str, width: int, *, gain: float = 1.0) -> Value:
    """Adds a MatMul and the Add of a bias; its outputs have a spread of about `gain`."""
    weight, bias, marginal = _draw_linear(b, x, name, width, gain, transposed=False)
    product = b.node(
        "MatMul",
        f"{name}.matmul",
        [x, b.initializer(f"{name}.weight", weight)],
        shape=(*x.shape[:-1], width),
        marginal=marginal,
    )
    return b.node("Add", f"{name}.add", [product, b.initializer(f"{name}.bias", bias)])


def gemm(b: GraphBuilder, x: Value, name: str, width: int) -> Value:
    """Adds a Gemm on a matrix; the weight is stored transposed, as usual in classifiers."""
    weight, bias, marginal = _draw_linear(b, x, name, width, 1.0, transposed=True)
    operands = b.parameters(name, weight=weight, bias=bias)
    shape = (x.shape[0], width)
    return b.node("Gemm", name, [x, *operands], shape=shape, marginal=marginal, transB=1)


def layer_norm(
    b: GraphBuilder, x: Value, name: str, *, epsilon: float = 1e-6, gain: float = 1.0
) -> Value:
    """Adds a LayerNormalization over the last axis; its outputs have a spread of about `gain`."""
    width = x.shape[-1]
    scale = b.weights.positive(f"{name}.weight", width, size=gain)
    shift = b.weights.normal(f"{name}.bias", (width,), std=BIAS_SIZE * gain)
    operands = b.parameters(name, weight=scale, bias=shift)
    marginal = Marginal.normal(shift, scale.astype(np.float64) ** 2)
    return b.node(
        "LayerNormalization", name, [x, *operands], marginal=marginal, axis=-1, epsilon=epsilon
    )


def gelu(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds 0.5 · x · (1 + Erf(x / √2)), as exporters write GELU below opset 20."""
    root = b.shared_scalar("gelu.sqrt_two", 1.4142135381698608)
    scaled = b.node("Div", f"{name}.div", [x, root])
    erf = b.node("Erf", f"{name}.erf", [scaled])
    raised = b.node("Add", f"{name}.add", [erf, b.shared_scalar("gelu.one", 1.0)])
    product = b.node("Mul", f"{name}.mul", [x, raised])
    marginal = x.marginal.through(gelu_of)
    return b.node(
        "Mul", f"{name}.half", [product, b.shared_scalar("gelu.half", 0.5)], marginal=marginal
    )


def gelu_tanh(b: GraphBuilder, x: Value, name: str) -> Value:
    """Adds 0.5 · x · (1 + Tanh(√(2/π) · (x + 0.044715 · x³))), as GPT-2 computes GELU."""
    half = b.node("Mul", f"{name}.half", [x, b.shared_scalar("gelu.half", 0.5)])
    cube = b.node("Pow", f"{name}.pow", [x, b.shared_scalar("gelu.three", 3.0)])
    small = b.node("Mul", f"{name}.small", [cube, b.shared_scalar("gelu.cubic", 0.044715)])
    inner = b.node("Add", f"{name}.inner", [x, small])
    scaled = b.node("Mul", f"{name}.scaled", [inner, b.shared_scalar("gelu.scale", 0.7978845608)])
    tanh = b.node("Tanh", f"{name}.tanh", [scaled])
    raised = b.node("Add", f"{name}.add", [tanh, b.shared_scalar("gelu.one", 1.0)])
    return b.node("Mul", f"{name}.mul", [half, raised], marginal=x.marginal.through(gelu_of))


def mixed_heads(b: GraphBuilder, scores: Value, v: Value, name: str) -> Value:
    """Adds Softmax(scores) · v, and concatenates the heads.

    Args:
        b: The builder.
        scores: batch x heads x tokens x tokens.
        v: batch x heads x tokens x head width, its marginal per channel of all heads.
        name: The attention's name.
    """
    batch, heads, tokens, head_width = v.shape
    attention = b.node("Softmax", f"{name}.softmax", [scores], axis=-1)
    marginal = v.marginal.average_of(_INDEPENDENT_TOKENS)
    context = b.node("MatMul", f"{name}.context", [attention, v], shape=v.shape, marginal=marginal)
    together = b.transpose(f"{name}.merge.transpose", context, (0, 2, 1, 3))
    return b.reshape(f"{name}.merge.reshape", together, (batch, tokens, heads * head_width))
