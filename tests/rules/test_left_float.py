"""What stays float though it has an integer kernel: Softmax, masks, GELU, first and last layer."""

from __future__ import annotations

import pytest

from tests.rules.drafting import decision, draft_of_text, ints, normal

ENGINES = ["onnxruntime", "openvino", "tensorrt"]
M = normal(32, 32)
TOKENS = "(float[1,4,32,32] q, float[1,4,32,32] k, float[1,4,32,32] mask) => (float[] y)"
MASK = (False, "softmax mask")


@pytest.mark.parametrize("dialect", ENGINES)
@pytest.mark.parametrize("between", ["", "i = Reshape(a, dims)", "i = Cast<to=10>(a)"])
def test_masks_before_a_softmax(between: str, dialect: str) -> None:
    text = (
        f"{TOKENS} {{ p = MatMul(q, k) n = MatMul(q, mask) a = Add(p, n)"
        f" {between} s = Softmax({'i' if between else 'a'}) y = Relu(s) }}"
    )
    weights = {"dims": ints(4, 32, 32)} if "dims" in between else {}
    assert decision(draft_of_text(text, dialect, **weights), "a") == MASK


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
def test_the_same_add_before_something_else(dialect: str) -> None:
    text = (
        f"{TOKENS} {{ p = MatMul(q, k) n = MatMul(q, mask) a = Add(p, n) s = Relu(a)"
        " y = MatMul(s, k) }"
    )
    assert decision(draft_of_text(text, dialect), "a") == (True, "residual Add")


@pytest.mark.parametrize(
    ("op", "expected"),
    [("Softmax", (False, "Softmax")), ("Sigmoid", (True, "activation"))],
)
def test_a_softmax_stays_float_between_quantized_ops(op: str, expected: tuple[bool, str]) -> None:
    text = f"(float[8,32] x) => (float[] y) {{ h = MatMul(x, m) s = {op}(h) y = MatMul(s, m) }}"
    assert decision(draft_of_text(text, "onnxruntime", m=M), "s") == expected


@pytest.mark.parametrize(("op", "moved"), [("Softmax", False), ("Relu", True)])
def test_a_move_before_a_softmax_hands_it_floats(op: str, moved: bool) -> None:
    text = (
        "(float[8,32] x) => (float[] y)"
        f" {{ h = MatMul(x, m) t = Transpose(h) s = {op}(t) y = MatMul(m, s) }}"
    )
    draft = draft_of_text(text, "onnxruntime", m=M)
    assert decision(draft, "t") == ((True, "moves values") if moved else (False, "Softmax"))


GELU = "e = Erf(d) o = Add(e, one) g = Mul(a, o)"


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (f"d = Div(a, one) {GELU}", (False, "GELU")),
        (f"d = Identity(a) {GELU}", (False, "GELU")),
        ("g = Gelu(a)", (False, "GELU")),
        ("g = Tanh(a)", (True, "bias")),
    ],
)
def test_a_bias_before_a_gelu(activation: str, expected: tuple[bool, str]) -> None:
    text = (
        "(float[8,32] x) => (float[] y)"
        f" {{ h = MatMul(x, m) a = Add(h, b) {activation} y = MatMul(g, m) }}"
    )
    weights = {"one": normal(1)} if "one" in activation else {}
    draft = draft_of_text(text, "onnxruntime", opset=20, m=M, b=normal(32), **weights)
    assert decision(draft, "a") == expected


def test_a_residual_add_before_a_gelu_is_no_bias() -> None:
    text = (
        "(float[8,32] x) => (float[] y)"
        " { h = MatMul(x, m) k = MatMul(x, b) a = Add(h, k) g = Gelu(a) y = MatMul(g, m) }"
    )
    draft = draft_of_text(text, "onnxruntime", opset=20, m=M, b=normal(32, 32))
    assert decision(draft, "a") == (True, "residual Add")


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(
    ("depth", "taps", "source", "rule"),
    [
        (1, 3, "x", "first layer"),
        (1, 4, "x", "weighted op"),
        (3, 1, "x", "first layer"),
        (1, 3, "r", "weighted op"),
    ],
)
def test_first_layers(depth: int, taps: int, source: str, rule: str, dialect: str) -> None:
    text = (
        f"(float[1,{depth},9,9] x) => (float[] y, float[] r)"
        f" {{ r = Relu(x) h = Conv({source}, w) y = Relu(h) }}"
    )
    draft = draft_of_text(text, dialect, w=normal(64, depth, taps, taps))
    assert decision(draft, "h") == (rule == "weighted op", rule)


@pytest.mark.parametrize(
    ("form", "depth", "rule"),
    [("MatMul", 15, "first layer"), ("MatMul", 16, "weighted op"),
     ("Gemm", 15, "first layer"), ("Gemm<transB=1>", 15, "first layer"),
     ("Gemm<transB=1>", 16, "weighted op")],
)  # fmt: skip
def test_first_products(form: str, depth: int, rule: str) -> None:
    weight = normal(64, depth) if "transB" in form else normal(depth, 64)
    text = f"(float[8,{depth}] x) => (float[] y) {{ h = {form}(x, w) y = Relu(h) }}"
    draft = draft_of_text(text, "onnxruntime", w=weight)
    assert decision(draft, "h") == (rule == "weighted op", rule)


@pytest.mark.parametrize(
    ("behind", "classes", "rule"),
    [
        ("y = Conv(r, v)", 1, "last layer"),
        ("y = Conv(r, v)", 64, "weighted op"),  # too much of the work
        ("h = Conv(r, v) y = Exp(h)", 1, "weighted op"),  # its result does not leave the model
    ],
)
def test_last_layers(behind: str, classes: int, rule: str) -> None:
    text = (
        "(float[1,32,8,8] x) => (float[] y)"
        f" {{ c = Conv<pads=[2,2,2,2]>(x, w) r = Relu(c) {behind} }}"
    )
    draft = draft_of_text(text, "onnxruntime", w=normal(64, 32, 5, 5), v=normal(classes, 64, 1, 1))
    assert decision(draft, "h" if "h = " in behind else "y") == (rule == "weighted op", rule)


def test_a_result_that_another_layer_reads_is_not_the_last() -> None:
    draft = draft_of_text(
        "(float[1,32,8,8] x) => (float[] h, float[] y)"
        " { c = Conv<pads=[2,2,2,2]>(x, w) h = Conv(c, v) k = Conv(h, u) y = Exp(k) }",
        "onnxruntime",
        w=normal(64, 32, 5, 5),
        v=normal(1, 64, 1, 1),
        u=normal(64, 1, 1, 1),
    )
    assert decision(draft, "h") == (True, "weighted op")


@pytest.mark.parametrize("dialect", ["openvino", "tensorrt"])
def test_a_last_layer_whose_result_is_float_anyway(dialect: str) -> None:
    draft = draft_of_text(
        "(float[1,32,8,8] x) => (float[] y) { c = Conv<pads=[1,1,1,1]>(x, w) y = Conv(c, v) }",
        dialect,
        w=normal(64, 32, 3, 3),
        v=normal(16, 64, 1, 1),
    )
    assert decision(draft, "y") == (True, "weighted op")
