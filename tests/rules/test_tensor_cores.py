"""What TensorRT has no fast integer kernel for, and the nearest thing that it has one for."""

from __future__ import annotations

import pytest

from tests.rules.drafting import decision, decisions, draft_of_text, normal

WEIGHTED = "weighted op"


@pytest.mark.parametrize(
    ("k", "n", "rule"),
    [(16, 16, WEIGHTED), (15, 16, "small GEMM"), (16, 15, "small GEMM"), (64, 8, "small GEMM")],
)
@pytest.mark.parametrize("form", ["MatMul", "Gemm", "Gemm transposed", "of activations"])
@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
def test_small_gemms(dialect: str, form: str, k: int, n: int, rule: str) -> None:
    inputs, weights = f"float[32,{k}] x", {"w": normal(k, n)}
    if form == "of activations":
        inputs, weights = f"{inputs}, float[{k},{n}] w", {}
    elif form == "Gemm transposed":
        weights = {"w": normal(n, k)}
    op = {"Gemm": "Gemm(x, w)", "Gemm transposed": "Gemm<transB=1>(x, w)"}.get(form, "MatMul(x, w)")
    draft = draft_of_text(
        f"({inputs}) => (float[32,{n}] y) {{ h = {op} y = Relu(h) }}", dialect, **weights
    )
    assert decision(draft, "h") == (rule == WEIGHTED, rule)
    if rule != WEIGHTED:
        what = f"only {k} values are summed up" if k < 16 else f"only {n} columns come out"
        assert decisions(draft)["h"].reason.startswith(what)


def test_sizes_that_nobody_knows_are_not_small() -> None:
    draft = draft_of_text(
        "(float[A,B] x, float[B,C] w) => (float[A,C] y) { h = MatMul(x, w) y = Relu(h) }",
        "tensorrt",
    )
    assert decision(draft, "h") == (True, WEIGHTED)


@pytest.mark.parametrize(
    ("x", "w", "y", "rule"),
    [
        ("[1,64]", None, "[1,64]", "GEMV"),
        ("[2,64]", None, "[2,64]", WEIGHTED),
        ("[N,64]", None, "[N,64]", WEIGHTED),
        ("[1,2,64]", None, "[1,2,64]", WEIGHTED),
        ("[1,1,64]", None, "[1,1,64]", WEIGHTED),
        ("[4,1,64]", "[4,64,64]", "[4,1,64]", "GEMV"),
        ("[4,2,64]", "[4,64,64]", "[4,2,64]", WEIGHTED),
        ("[1,2,64]", "[1,64,64]", "[1,2,64]", WEIGHTED),
    ],
)
def test_gemvs(x: str, w: str | None, y: str, rule: str) -> None:
    weights = {"w": normal(64, 64)} if w is None else {}
    inputs = f"float{x} x" if w is None else f"float{x} x, float{w} w"
    draft = draft_of_text(
        f"({inputs}) => (float{y} y) {{ h = MatMul(x, w) y = Relu(h) }}", "tensorrt", **weights
    )
    assert decision(draft, "h") == (rule == WEIGHTED, rule)


FEW = "Conv channels"


@pytest.mark.parametrize(
    ("channels", "depth", "taps", "group", "quant_type", "rule"),
    [
        (16, 16, (3, 3), 1, "int8", WEIGHTED),
        (15, 15, (3, 3), 1, "int8", FEW),
        (64, 3, (7, 7), 1, "int8", WEIGHTED),
        (60, 3, (7, 7), 1, "int8", FEW),  # neither side is a multiple of 8
        (64, 3, (1, 7), 1, "int8", FEW),  # not square
        (16, 2, (3, 3), 8, "int8", WEIGHTED),
        (12, 1, (3, 3), 12, "int8", FEW),
        (16, 1, (1, 1), 16, "int8", FEW),
        (32, 32, (3, 3), 1, "fp8", WEIGHTED),
        (16, 32, (3, 3), 1, "fp8", FEW),
        (64, 3, (5, 5), 1, "fp8", FEW),
    ],
)
def test_conv_channels(
    channels: int, depth: int, taps: tuple[int, int], group: int, quant_type: str, rule: str
) -> None:
    draft = draft_of_text(
        f"(float[1,{depth * group},9,9] x) => (float[] y)"
        f" {{ r = Relu(x) h = Conv<group={group}>(r, w) y = Relu(h) }}",
        "tensorrt",
        quant_type,
        opset=19,
        w=normal(channels, depth, *taps),
    )
    assert decision(draft, "h") == (rule == WEIGHTED, rule)


@pytest.mark.parametrize(("source", "rule"), [("x", WEIGHTED), ("r", FEW)])
def test_few_channels_are_enough_behind_the_input(source: str, rule: str) -> None:
    draft = draft_of_text(
        f"(float[1,3,9,9] x) => (float[] y, float[] r)"
        f" {{ r = Relu(x) h = Conv({source}, w) y = Relu(h) }}",
        "tensorrt",
        w=normal(8, 3, 3, 3),
    )
    assert decision(draft, "h") == (rule == WEIGHTED, rule)


def test_weights_that_are_computed() -> None:
    draft = draft_of_text(
        "(float[1,16,9,9] x, float[16,16,3,3] w) => (float[] y) { h = Conv(x, w) y = Relu(h) }",
        "tensorrt",
    )
    assert decision(draft, "h") == (False, FEW)


# Attention: queries, keys and values as inputs, what is done to the scores in between.

SCORES = {
    "plain": "s = Softmax(p)",
    "scaled and masked": "d = Mul(half, p) a = Add(d, mask) s = Softmax(a)",
    "mask first": "a = Add(mask, p) s = Softmax(a)",
    "where": "a = Where(keep, p, half) s = Softmax(a)",
    "cast": "c = Cast<to=1>(p) s = Softmax(c)",
}


def attention(length: int, head: int, quant_type: str, scores: str = "plain") -> list[bool]:
    """Whether both products of an attention are quantized."""
    text = (
        f"(float[1,2,{length},{head}] q, float[1,2,{head},{length}] k, float[1,2,{length},{head}] v"
        f", float[1,1,1,{length}] mask, bool[1,1,1,{length}] keep) => (float[] y)"
        f" {{ p = MatMul(q, k) {SCORES[scores]} o = MatMul(s, v) y = Relu(o) }}"
    )
    weights = {"half": normal(1)} if "half" in SCORES[scores] else {}
    draft = draft_of_text(text, "tensorrt", quant_type, opset=19, **weights)
    found = [decision(draft, name) for name in ("p", "o")]
    assert all(rule == (WEIGHTED if quantized else "attention") for quantized, rule in found)
    return [quantized for quantized, _ in found]


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("length", [512, 513])
def test_long_sequences_have_no_integer_attention(length: int, scores: str) -> None:
    assert attention(length, 64, "int8", scores) == [length <= 512] * 2


@pytest.mark.parametrize(("head", "fits"), [(256, True), (257, False)])
def test_heads_that_have_no_float8_attention(head: int, fits: bool) -> None:
    assert attention(64, head, "fp8") == [fits] * 2
    assert attention(64, head, "int8") == [True] * 2


def test_float8_attention_may_be_long() -> None:
    assert attention(1024, 64, "fp8") == [True] * 2


def test_a_projection_behind_a_softmax_is_no_attention() -> None:
    draft = draft_of_text(
        "(float[4,1024] x) => (float[] y) { s = Softmax(x) h = MatMul(s, w) y = Relu(h) }",
        "tensorrt",
        w=normal(1024, 16),
    )
    assert decision(draft, "h") == (True, WEIGHTED)
