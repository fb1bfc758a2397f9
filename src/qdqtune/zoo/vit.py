"""ViT: a pre-norm encoder on image patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdqtune.zoo.builder import GraphBuilder, Value
from qdqtune.zoo.convolution import Window
from qdqtune.zoo.image_layers import add, conv, image_input
from qdqtune.zoo.settings import require_multiple
from qdqtune.zoo.token_layers import (
    SHARPNESS,
    gelu,
    gemm,
    layer_norm,
    linear,
    mixed_heads,
)

if TYPE_CHECKING:
    import onnx


def vit(
    seed: int,
    *,
    layers: int = 12,
    width: int = 384,
    head_width: int = 64,
    patch: int = 16,
    image: int = 224,
    batch: int = 1,
    classes: int = 1000,
) -> onnx.ModelProto:
    """ViT-S/16: patch convolution, fused QKV, Softmax, GELU, pre-norm."""
    require_multiple("width", width, "head_width", head_width)
    require_multiple("image", image, "patch", patch)
    b = GraphBuilder("vit", seed, branches=2 * layers)
    x = _embedding(b, image_input(b, batch, image), width, patch)
    for index in range(layers):
        name = f"blocks.{index}"
        y = _attention(b, layer_norm(b, x, f"{name}.norm1"), f"{name}.attn", width // head_width)
        x = add(b, x, y, f"{name}.add1")
        y = linear(b, layer_norm(b, x, f"{name}.norm2"), f"{name}.mlp.fc1", 4 * width)
        y = linear(b, gelu(b, y, f"{name}.mlp.gelu"), f"{name}.mlp.fc2", width, gain=b.branch_gain)
        x = add(b, x, y, f"{name}.add2")
    x = layer_norm(b, x, "norm")
    first = b.initializer("class_token.index", np.array(0, np.int64))
    x = b.node("Gather", "class_token.pick", [x, first], shape=(batch, width), axis=1)
    return b.model({"logits": gemm(b, x, "head", classes)})


def _embedding(b: GraphBuilder, image: Value, width: int, patch: int) -> Value:
    x = conv(b, image, "patch_embed.conv", width, Window(patch, patch, padded=False), gain=0.7)
    batch, _, rows, columns = x.shape
    patches = rows * columns
    x = b.reshape("patch_embed.flatten", x, (batch, width, patches))
    x = b.transpose("patch_embed.transpose", x, (0, 2, 1))
    token = b.initializer("class_token", b.weights.normal("class_token", (1, 1, width), std=0.7))
    shape = b.integers("class_token.expand.shape", (batch, 1, width))
    token = b.node("Expand", "class_token.expand", [token, shape], shape=(batch, 1, width))
    tokens = (batch, patches + 1, width)
    x = b.node(
        "Concat", "class_token.concat", [token, x], shape=tokens, marginal=x.marginal, axis=1
    )
    positions = b.weights.normal("pos_embed", (1, patches + 1, width), std=0.3, channel_axis=2)
    return b.node("Add", "pos_embed.add", [x, b.initializer("pos_embed", positions)])


def _attention(b: GraphBuilder, x: Value, name: str, heads: int) -> Value:
    batch, tokens, width = x.shape
    head_width = width // heads
    qkv = linear(b, x, f"{name}.qkv", 3 * width, gain=SHARPNESS)
    values = qkv.marginal.channels(2 * width, 3 * width)
    stacked = b.reshape(f"{name}.qkv.reshape", qkv, (batch, tokens, 3, heads, head_width), values)
    stacked = b.transpose(f"{name}.qkv.transpose", stacked, (2, 0, 3, 1, 4))
    axes = b.integers(f"{name}.squeeze.axes", (0,))
    q, k, v = (
        b.node("Squeeze", f"{name}.{role}", [part, axes], shape=part.shape[1:])
        for role, part in zip(
            "qkv", b.split(f"{name}.qkv.split", stacked, (1, 1, 1), axis=0), strict=True
        )
    )
    scale = b.initializer(f"{name}.scale", np.array(head_width**-0.5, np.float32))
    q = b.node("Mul", f"{name}.q.scaled", [q, scale])
    k = b.transpose(f"{name}.k.transpose", k, (0, 1, 3, 2))
    scores = b.node("MatMul", f"{name}.scores", [q, k], shape=(batch, heads, tokens, tokens))
    mixed = mixed_heads(b, scores, v, name)
    return linear(b, mixed, f"{name}.proj", width, gain=b.branch_gain)
