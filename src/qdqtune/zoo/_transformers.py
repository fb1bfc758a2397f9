"""Transformers: the encoders BERT and ViT, the decoder GPT-2."""

from __future__ import annotations

import math

import numpy as np
import onnx

from qdqtune.records._errors import UsageError
from qdqtune.zoo._builder import STANDARD_NORMAL, Float32s, GraphBuilder, Value
from qdqtune.zoo._layers import (
    SHARPNESS,
    Window,
    add,
    conv,
    gelu,
    gelu_tanh,
    gemm,
    image_input,
    layer_norm,
    linear,
    mixed_heads,
    require_multiple,
)

_POSITIONS = 512
_GPT_POSITIONS = 1024
_TOKEN_TYPES = 2
_EPSILON = 1e-12
_GPT_EPSILON = 1e-5
_MASKED_SCORE = -10000.0
_LOGITS_SPREAD = 4.0


def bert(
    seed: int,
    *,
    layers: int = 4,
    width: int = 256,
    head_width: int = 64,
    sequence: int = 128,
    vocabulary: int = 30522,
    batch: int = 1,
) -> onnx.ModelProto:
    """BERT: int64 inputs, embeddings, masked attention, GELU, post-norm, pooler."""
    require_multiple("width", width, "head_width", head_width)
    _require_positions(sequence, _POSITIONS)
    b = GraphBuilder("bert", seed, branches=2 * layers)
    ids, types, mask = (
        b.input(name, (batch, sequence), onnx.TensorProto.INT64)
        for name in ("input_ids", "token_type_ids", "attention_mask")
    )
    x = _embeddings(b, ids, types, width, vocabulary)
    penalty = _mask_penalty(b, mask)
    for index in range(layers):
        name = f"encoder.{index}"
        y = _attention(b, x, penalty, f"{name}.attention", width // head_width)
        x = _normalized_sum(b, x, y, f"{name}.attention")
        y = gelu(b, linear(b, x, f"{name}.ffn.fc1", 4 * width), f"{name}.ffn.gelu")
        y = linear(b, y, f"{name}.ffn.fc2", width, gain=b.branch_gain)
        x = _normalized_sum(b, x, y, f"{name}.ffn")
    return b.model({"last_hidden_state": x, "pooler_output": _pooler(b, x)})


def _require_positions(sequence: int, positions: int) -> None:
    if sequence > positions:
        raise UsageError(f"sequence={sequence} is too long", f"At most {positions}.")


def _embeddings(b: GraphBuilder, ids: Value, types: Value, width: int, vocabulary: int) -> Value:
    positions = b.integers("embeddings.position_ids", range(ids.shape[1]))
    words = _looked_up(b, "embeddings.word", ids, vocabulary, width, 1.0)
    kinds = _looked_up(b, "embeddings.token_type", types, _TOKEN_TYPES, width, 0.3)
    places = _looked_up(b, "embeddings.position", positions, _POSITIONS, width, 0.5)
    x = add(b, words, kinds, "embeddings.add_type")
    x = add(b, x, places, "embeddings.add_position")
    return layer_norm(b, x, "embeddings.norm", epsilon=_EPSILON)


def _looked_up(b: GraphBuilder, name: str, ids: Value, rows: int, width: int, size: float) -> Value:
    table = b.weights.normal(f"{name}.weight", (rows, width), std=size, channel_axis=1)
    return _gathered(b, name, ids, table)


def _gathered(b: GraphBuilder, name: str, ids: Value, table: Float32s) -> Value:
    operands = [b.initializer(f"{name}.weight", table), ids]
    shape = (*ids.shape, table.shape[1])
    return b.node("Gather", f"{name}.gather", operands, shape=shape, axis=0)


def _mask_penalty(b: GraphBuilder, mask: Value) -> Value:
    """Adds a mask: 0 where attention is allowed, a large negative number at padding."""
    batch, sequence = mask.shape
    axes = b.integers("mask.unsqueeze.axes", (1, 2))
    x = b.node("Unsqueeze", "mask.unsqueeze", [mask, axes], shape=(batch, 1, 1, sequence))
    x = b.node("Cast", "mask.cast", [x], to=onnx.TensorProto.FLOAT)
    x = b.node("Sub", "mask.invert", [b.shared_scalar("mask.one", 1.0), x], shape=x.shape)
    return b.node("Mul", "mask.scale", [x, b.shared_scalar("mask.score", _MASKED_SCORE)])


def _attention(b: GraphBuilder, x: Value, penalty: Value, name: str, heads: int) -> Value:
    batch, tokens, width = x.shape
    head_width = width // heads

    def projected(role: str, perm: tuple[int, ...]) -> Value:
        y = linear(b, x, f"{name}.{role}", width, gain=SHARPNESS)
        y = b.reshape(f"{name}.{role}.reshape", y, (batch, tokens, heads, head_width))
        return b.transpose(f"{name}.{role}.transpose", y, perm)

    q, v = projected("query", (0, 2, 1, 3)), projected("value", (0, 2, 1, 3))
    k = projected("key", (0, 2, 3, 1))
    scores = _scaled_scores(b, q, k, name)
    scores = b.node("Add", f"{name}.scores.masked", [scores, penalty])
    mixed = mixed_heads(b, scores, v, name)
    return linear(b, mixed, f"{name}.output", width, gain=b.branch_gain)


def _scaled_scores(b: GraphBuilder, q: Value, k: Value, name: str) -> Value:
    """Products of queries and transposed keys, divided by the root of the head width."""
    batch, heads, tokens, head_width = q.shape
    scores = b.node("MatMul", f"{name}.scores", [q, k], shape=(batch, heads, tokens, tokens))
    root = b.initializer(f"{name}.scores.sqrt_width", np.array(math.sqrt(head_width), np.float32))
    return b.node("Div", f"{name}.scores.scaled", [scores, root])


def _normalized_sum(b: GraphBuilder, x: Value, y: Value, name: str) -> Value:
    return layer_norm(b, add(b, y, x, f"{name}.add"), f"{name}.norm", epsilon=_EPSILON)


def _pooler(b: GraphBuilder, x: Value) -> Value:
    first = b.initializer("pooler.index", np.array(0, np.int64))
    y = b.node("Gather", "pooler.first", [x, first], shape=(x.shape[0], x.shape[2]), axis=1)
    y = gemm(b, y, "pooler.dense", x.shape[2])
    return b.node("Tanh", "pooler.tanh", [y], marginal=STANDARD_NORMAL)


def gpt(
    seed: int,
    *,
    layers: int = 4,
    width: int = 256,
    head_width: int = 64,
    sequence: int = 128,
    vocabulary: int = 8192,
    batch: int = 1,
) -> onnx.ModelProto:
    """GPT-2: int64 input, causal attention with fused QKV, tanh GELU, pre-norm, tied head."""
    require_multiple("width", width, "head_width", head_width)
    _require_positions(sequence, _GPT_POSITIONS)
    b = GraphBuilder("gpt", seed, branches=2 * layers)
    ids = b.input("input_ids", (batch, sequence), onnx.TensorProto.INT64)
    positions = b.integers("position_ids", range(sequence))
    words = b.weights.normal("wte.weight", (vocabulary, width), channel_axis=1)
    x = _gathered(b, "wte", ids, words)
    x = add(b, x, _looked_up(b, "wpe", positions, _GPT_POSITIONS, width, 0.5), "embeddings.add")
    may_look = b.initializer("mask.causal", np.tri(sequence, dtype=bool)[None, None])
    for index in range(layers):
        name = f"h.{index}"
        y = layer_norm(b, x, f"{name}.ln_1", epsilon=_GPT_EPSILON)
        y = _causal_attention(b, y, may_look, f"{name}.attn", width // head_width)
        x = add(b, y, x, f"{name}.add_1")
        y = layer_norm(b, x, f"{name}.ln_2", epsilon=_GPT_EPSILON)
        y = gelu_tanh(b, linear(b, y, f"{name}.mlp.c_fc", 4 * width), f"{name}.mlp.act")
        y = linear(b, y, f"{name}.mlp.c_proj", width, gain=b.branch_gain)
        x = add(b, x, y, f"{name}.add_2")
    x = layer_norm(b, x, "ln_f", epsilon=_GPT_EPSILON, gain=_LOGITS_SPREAD / math.sqrt(width))
    # Exporters fold the Transpose of the shared table into a second initializer.
    head = b.initializer("lm_head.weight_transposed", np.ascontiguousarray(words.T))
    return b.model(
        {"logits": b.node("MatMul", "lm_head", [x, head], shape=(batch, sequence, vocabulary))}
    )


def _causal_attention(b: GraphBuilder, x: Value, may_look: Value, name: str, heads: int) -> Value:
    batch, tokens, width = x.shape
    qkv = linear(b, x, f"{name}.c_attn", 3 * width, gain=SHARPNESS)
    perms = {"q": (0, 2, 1, 3), "k": (0, 2, 3, 1), "v": (0, 2, 1, 3)}
    parts = b.split(f"{name}.split", qkv, (width,) * 3, axis=2)

    def per_head(part: Value, role: str) -> Value:
        y = b.reshape(f"{name}.{role}.reshape", part, (batch, tokens, heads, width // heads))
        return b.transpose(f"{name}.{role}.transpose", y, perms[role])

    q, k, v = (per_head(part, role) for part, role in zip(parts, perms, strict=True))
    scores = _scaled_scores(b, q, k, name)
    penalty = b.shared_scalar("mask.score", _MASKED_SCORE)
    scores = b.node(
        "Where", f"{name}.scores.masked", [may_look, scores, penalty], shape=scores.shape
    )
    mixed = mixed_heads(b, scores, v, name)
    return linear(b, mixed, f"{name}.c_proj", width, gain=b.branch_gain)


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
        y = _vit_attention(
            b, layer_norm(b, x, f"{name}.norm1"), f"{name}.attn", width // head_width
        )
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


def _vit_attention(b: GraphBuilder, x: Value, name: str, heads: int) -> Value:
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
