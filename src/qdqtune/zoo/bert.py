"""BERT: a post-norm encoder on token ids with a padding mask."""

from __future__ import annotations

import math

import numpy as np
import onnx

from qdqtune.records.errors import UsageError
from qdqtune.zoo.builder import STANDARD_NORMAL, GraphBuilder, Value
from qdqtune.zoo.image_layers import add
from qdqtune.zoo.settings import require_multiple
from qdqtune.zoo.token_layers import (
    SHARPNESS,
    gelu,
    gemm,
    layer_norm,
    linear,
    mixed_heads,
)

_POSITIONS = 512
_TOKEN_TYPES = 2
_EPSILON = 1e-12
_MASKED_SCORE = -10000.0


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
    if sequence > _POSITIONS:
        raise UsageError(f"sequence={sequence} is too long", f"At most {_POSITIONS}.")
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
    operands = [b.initializer(f"{name}.weight", table), ids]
    return b.node("Gather", f"{name}.gather", operands, shape=(*ids.shape, width), axis=0)


def _mask_penalty(b: GraphBuilder, mask: Value) -> Value:
    """0 where attention may look, a large negative number at padding."""
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
    scores = b.node("MatMul", f"{name}.scores", [q, k], shape=(batch, heads, tokens, tokens))
    root = b.initializer(f"{name}.scores.sqrt_width", np.array(math.sqrt(head_width), np.float32))
    scores = b.node("Div", f"{name}.scores.scaled", [scores, root])
    scores = b.node("Add", f"{name}.scores.masked", [scores, penalty])
    mixed = mixed_heads(b, scores, v, name)
    return linear(b, mixed, f"{name}.output", width, gain=b.branch_gain)


def _normalized_sum(b: GraphBuilder, x: Value, y: Value, name: str) -> Value:
    return layer_norm(b, add(b, y, x, f"{name}.add"), f"{name}.norm", epsilon=_EPSILON)


def _pooler(b: GraphBuilder, x: Value) -> Value:
    first = b.initializer("pooler.index", np.array(0, np.int64))
    y = b.node("Gather", "pooler.first", [x, first], shape=(x.shape[0], x.shape[2]), axis=1)
    y = gemm(b, y, "pooler.dense", x.shape[2])
    return b.node("Tanh", "pooler.tanh", [y], marginal=STANDARD_NORMAL)
