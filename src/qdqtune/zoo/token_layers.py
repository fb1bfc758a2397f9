"""Layers on values whose last axis holds the channels: linear, LayerNorm, GELU, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo import marginals
from qdqtune.zoo.image_layers import BIAS_SIZE
from qdqtune.zoo.marginals import Marginal

if TYPE_CHECKING:
    from qdqtune.zoo.builder import GraphBuilder, Value
    from qdqtune.zoo.weights import Float32s

SHARPNESS = 1.3
"""The spread of queries and keys; above 1, so that attention picks few tokens."""

# How many independent tokens an attention's output averages over: more in the first layers, but
# with depth tokens grow alike.
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


def gemm(b: GraphBuilder, x: Value, name: str, width: int, *, gain: float = 1.0) -> Value:
    """Adds a Gemm on a matrix, the weight stored transposed as classifiers have it."""
    weight, bias, marginal = _draw_linear(b, x, name, width, gain, transposed=True)
    operands = [b.initializer(f"{name}.weight", weight), b.initializer(f"{name}.bias", bias)]
    shape = (x.shape[0], width)
    return b.node("Gemm", name, [x, *operands], shape=shape, marginal=marginal, transB=1)


def layer_norm(b: GraphBuilder, x: Value, name: str, *, epsilon: float = 1e-6) -> Value:
    """Adds a LayerNormalization over the last axis."""
    width = x.shape[-1]
    scale = b.weights.positive(f"{name}.weight", width, size=1.0)
    shift = b.weights.normal(f"{name}.bias", (width,), std=BIAS_SIZE)
    operands = [b.initializer(f"{name}.weight", scale), b.initializer(f"{name}.bias", shift)]
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
    marginal = x.marginal.through(marginals.gelu)
    return b.node(
        "Mul", f"{name}.half", [product, b.shared_scalar("gelu.half", 0.5)], marginal=marginal
    )


def mixed_heads(b: GraphBuilder, scores: Value, v: Value, name: str) -> Value:
    """Adds Softmax(scores) · v and puts the heads side by side again.

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
