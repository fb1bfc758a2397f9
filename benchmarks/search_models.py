"""Small models of different structure, with about ten choices each: all placements can be timed."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from qdqtune.zoo._builder import GraphBuilder, Value
from qdqtune.zoo._layers import (
    POINTWISE,
    Window,
    add,
    concat,
    conv,
    flatten,
    gelu,
    gemm,
    global_average_pool,
    image_input,
    layer_norm,
    linear,
    max_pool,
    mixed_heads,
    relu,
    silu,
)


def convs() -> onnx.ModelProto:
    """A chain of Convs whose shapes fit integer kernels well and badly."""
    b = GraphBuilder("convs", 0)
    x = image_input(b, 1, 96)
    for number, (width, window) in enumerate(_CHAIN):
        x = relu(b, conv(b, x, f"conv{number}", width, window), f"relu{number}")
    return b.model({"features": x})


# Two runs that gain, with depthwise and very narrow Convs before, between and behind.
_CHAIN = (
    (32, Window(3, 2)), (32, Window(5, groups=32)), (64, Window(3)), (48, Window(3)),
    (48, Window(3, groups=48)), (2, POINTWISE), (48, Window(3)), (96, Window(3, 2)),
    (96, Window(3)), (96, Window(5, groups=96)),
)  # fmt: skip


def residual() -> onnx.ModelProto:
    """Three residual blocks behind a stem; the last one is narrow."""
    b = GraphBuilder("residual", 0)
    x = relu(b, conv(b, image_input(b, 1, 96), "stem", 32, Window(3, 2)), "stem.relu")
    for number, (width, kernel, groups) in enumerate(((64, 3, 1), (32, 3, 32), (48, 3, 1))):
        window = Window(kernel, groups=groups)
        y = relu(b, conv(b, x, f"{number}.a", width, window), f"{number}.relu")
        y = conv(b, y, f"{number}.b", x.shape[1], window)
        x = relu(b, add(b, x, y, f"{number}.add"), f"{number}.out")
    return b.model({"features": x})


def mobile() -> onnx.ModelProto:
    """Pointwise and depthwise Convs around shortcuts."""
    b = GraphBuilder("mobile", 0)
    x = relu(b, conv(b, image_input(b, 1, 112), "stem", 96, Window(3, 8)), "stem.relu")
    for number, wide in enumerate((384, 576)):
        y = relu(b, conv(b, x, f"{number}.expand", wide), f"{number}.relu1")
        y = conv(b, y, f"{number}.depthwise", wide, Window(3, groups=wide))
        y = conv(b, relu(b, y, f"{number}.relu2"), f"{number}.project", 96)
        x = add(b, x, y, f"{number}.add")
        x = conv(b, x, f"{number}.down", 96, Window(3, 2)) if not number else x
    return b.model({"features": conv(b, x, "head", 640)})


def gated() -> onnx.ModelProto:
    """Convs followed by SiLU, whose Sigmoid and Mul are choices of their own."""
    b = GraphBuilder("gated", 0)
    x = image_input(b, 1, 64)
    for number, (width, window) in enumerate(
        ((64, Window(3, 2)), (96, Window(3)), (96, Window(3, 2, groups=96)), (320, POINTWISE))
    ):
        x = conv(b, x, f"conv{number}", width, window)
        x = silu(b, x, f"silu{number}") if number != 2 else relu(b, x, f"relu{number}")
    return b.model({"features": x})


def shuffle() -> onnx.ModelProto:
    """Channels split, worked on in part, joined and shuffled: ops that only move values."""
    b = GraphBuilder("shuffle", 0)
    x = relu(b, conv(b, image_input(b, 1, 96), "stem", 128, Window(3, 4)), "stem.relu")
    for number in range(2):
        kept, worked = b.split(f"{number}.split", x, (64, 64), axis=1)
        worked = relu(b, conv(b, worked, f"{number}.in", 64, Window(3)), f"{number}.relu1")
        window = Window(3, groups=64 if number else 1)
        worked = conv(b, worked, f"{number}.middle", 64, window)
        x = _shuffled(b, concat(b, [kept, worked], f"{number}.concat"), f"{number}.shuffle")
    return b.model({"features": conv(b, x, "head", 256)})


def _shuffled(b: GraphBuilder, x: Value, name: str) -> Value:
    batch, channels, height, width = x.shape
    y = b.reshape(f"{name}.group", x, (batch, 2, channels // 2, height, width))
    y = b.transpose(f"{name}.swap", y, (0, 2, 1, 3, 4))
    return b.reshape(f"{name}.merge", y, x.shape)


def attention() -> onnx.ModelProto:
    """A transformer block."""
    b = GraphBuilder("attention", 0)
    tokens, width, heads = 128, 256, 4
    x = b.input("tokens", (1, tokens, width))
    normed = layer_norm(b, x, "norm1")
    q, k, v = (_heads(b, linear(b, normed, name, width), name, heads) for name in ("q", "k", "v"))
    keys = b.transpose("k.turn", k, (0, 1, 3, 2))
    scores = b.node("MatMul", "scores", [q, keys], shape=(1, heads, tokens, tokens))
    mixed = mixed_heads(b, scores, v, "attention")
    x = add(b, x, linear(b, mixed, "out", width), "add1")
    y = gelu(b, linear(b, layer_norm(b, x, "norm2"), "fc1", 4 * width), "gelu")
    return b.model({"features": add(b, x, linear(b, y, "fc2", width), "add2")})


def _heads(b: GraphBuilder, x: Value, name: str, heads: int) -> Value:
    batch, tokens, width = x.shape
    y = b.reshape(f"{name}.split", x, (batch, tokens, heads, width // heads))
    return b.transpose(f"{name}.heads", y, (0, 2, 1, 3))


def pyramid() -> onnx.ModelProto:
    """Two branches of different scale, joined by Resize and Concat, then a classifier."""
    b = GraphBuilder("pyramid", 0)
    x = relu(b, conv(b, image_input(b, 1, 64), "stem", 32, Window(3, 2)), "stem.relu")
    low = max_pool(b, x, "pool", Window(2, 2, padded=False))
    low = relu(b, conv(b, low, "low1", 10, Window(3)), "low1.relu")
    low = relu(b, conv(b, low, "low2", 32, Window(3)), "low2.relu")
    sizes = b.integers("up.sizes", (1, 32, 32, 32))
    none = Value("", ())
    up = b.node("Resize", "up", [low, none, none, sizes], shape=(1, 32, 32, 32), mode="nearest")
    high = relu(b, conv(b, x, "high", 18, Window(3)), "high.relu")
    joined = concat(b, [up, high], "join")
    y = relu(b, conv(b, joined, "mix", 40, Window(3)), "mix.relu")
    y = flatten(b, global_average_pool(b, y, "mean"), "flatten")
    return b.model({"logits": gemm(b, y, "classify", 1000)})


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build for build in (convs, residual, mobile, gated, shuffle, attention, pyramid)
}
"""Models by name."""


def products() -> onnx.ModelProto:
    """A chain of products: some gain as a run, some each by itself, and narrow ones not at all."""
    b = GraphBuilder("products", 0)
    x = b.input("rows", (64, 256))
    for number, width in enumerate((512, 512, 12, 768, 128)):
        x = gemm(b, x, f"fc{number}", width)
        x = relu(b, x, f"relu{number}") if number < 2 else gelu(b, x, f"gelu{number}")
    return b.model({"features": x})


def runs() -> onnx.ModelProto:
    """The smallest of them: two products that gain together, and one that gains by itself."""
    b = GraphBuilder("runs", 0)
    x = relu(b, gemm(b, b.input("rows", (64, 384)), "fc0", 384), "relu0")
    x = _tanh(b, gemm(b, x, "fc1", 256), "tanh1")
    x = _tanh(b, gemm(b, x, "fc2", 768), "tanh2")
    return b.model({"features": gemm(b, x, "fc3", 8)})


def readers() -> onnx.ModelProto:
    """Products that read one tensor: what it costs to quantize that is shared."""
    b = GraphBuilder("readers", 0)
    x = b.input("rows", (96, 768))
    parts = [gemm(b, x, name, width) for name, width in (("a", 16), ("b", 64), ("c", 192))]
    narrow = [_tanh(b, part, f"tanh{number}") for number, part in enumerate(parts[:2])]
    y = gemm(b, concat(b, narrow, "join"), "mix", 192)
    y = _tanh(b, add(b, y, parts[2], "sum"), "sum.tanh")
    return b.model({"features": gemm(b, y, "out", 320)})


def _tanh(b: GraphBuilder, x: Value, name: str) -> Value:
    """Add an op that stays float."""
    return b.node("Tanh", name, [x])


def sums() -> onnx.ModelProto:
    """Residual sums before layer normalizations, with products of different shapes between them."""
    b = GraphBuilder("sums", 0)
    x = b.input("rows", (128, 192))
    for number, wide in enumerate((512, 640)):
        y = gemm(b, x, f"{number}.up", wide)
        y = _tanh(b, y, "tanh") if number else relu(b, y, "relu")
        x = add(b, x, gemm(b, y, f"{number}.down", 192), f"{number}.add")
        x = layer_norm(b, x, f"{number}.norm")
    return b.model({"features": x})


WITH_FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build for build in (runs, products, readers, sums, attention)
}
"""Models whose ops can also be dynamic or unfused."""
