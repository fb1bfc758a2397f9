"""Ops that are quantized because of what surrounds them: adds, pools, joins, gates, moves."""

from __future__ import annotations

import pytest

from qdqtune.records._placement import Edge
from qdqtune.rules._placement_draft import Constraints
from tests.rules.drafting import decision, decisions, draft_of_text, edges_into, normal

ENGINES = ["onnxruntime", "openvino", "tensorrt"]
W = normal(16, 16, 3, 3)
IMAGE = "(float[1,16,8,8] x) => (float[] y)"


def conv(result: str, source: str) -> str:
    return f"{result} = Conv<pads=[1,1,1,1]>({source}, w)"


@pytest.mark.parametrize("dialect", ENGINES)
def test_weighted_ops_are_quantized_whole(dialect: str) -> None:
    draft = draft_of_text(f"{IMAGE} {{ {conv('c', 'x')} y = Relu(c) }}", dialect, w=W)
    assert decision(draft, "c") == (True, "weighted op")
    assert {("x", "c", 0), ("w", "c", 1)} <= edges_into(draft, "c")
    assert ("y" in draft.placement().outputs) == (dialect == "onnxruntime")


def test_ops_that_have_no_kernel_and_ops_that_no_rule_wants() -> None:
    draft = draft_of_text(f"{IMAGE} {{ e = Erf(x) y = Add(e, x) }}", "onnxruntime")
    assert decision(draft, "e") == (False, "no kernel")
    assert decision(draft, "y") == (False, "no rule")


def test_a_tensor_that_an_op_reads_often_is_looked_at_once() -> None:
    draft = draft_of_text(f"{IMAGE} {{ y = Concat<axis=1>(x, x, x) }}", "onnxruntime")
    assert draft.activations(draft.index.node["y"]) == ["x"]


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("other", "both"), [("Relu", True), ("Erf", False)])
def test_residual_adds_between_integers(dialect: str, other: str, both: bool) -> None:
    body = f"{conv('c', 'x')} {conv('d', 'x')} e = {other}(d) a = Add(c, e) {conv('y', 'a')}"
    draft = draft_of_text(f"{IMAGE} {{ {body} }}", dialect, w=W)
    assert decision(draft, "a") == ((True, "residual Add") if both else (False, "no rule"))


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
@pytest.mark.parametrize(
    ("body", "quantized"),
    [
        ("a = Add(c, x)", {Edge("x", "a", 1)}),
        ("a = Add(x, c)", {Edge("x", "a", 0)}),
        # of two Convs the later one adds
        (f"{conv('d', 'x')} a = Add(c, d)", {Edge("c", "a", 0)}),
        (f"{conv('d', 'x')} a = Add(d, c)", {Edge("c", "a", 1)}),
    ],
)
def test_tensorrt_adds_inside_the_conv(body: str, quantized: set[Edge], dialect: str) -> None:
    draft = draft_of_text(f"{IMAGE} {{ {conv('c', 'x')} {body} {conv('y', 'a')} }}", dialect, w=W)
    assert decision(draft, "a") == (True, "residual Add")
    assert edges_into(draft, "a") == quantized


@pytest.mark.parametrize(
    "body",
    [
        "e = Erf(c) a = Add(e, x)",  # nothing to fuse into
        "a = Add(c, x) e = Erf(c)",  # the result is read twice
    ],
)
def test_tensorrt_leaves_other_adds_float(body: str) -> None:
    text = f"(float[1,16,8,8] x) => (float[] a, float[] e) {{ {conv('c', 'x')} {body} }}"
    assert decision(draft_of_text(text, "tensorrt", w=W), "a") == (False, "no rule")


@pytest.mark.parametrize(
    ("source", "never", "expected"),
    [("h", "", (True, "bias")), ("e", "", (False, "no rule")), ("h", "h", (False, "no rule"))],
)
def test_biases_are_added_to_integers(source: str, never: str, expected: tuple[bool, str]) -> None:
    draft = draft_of_text(
        f"(float[8,64] x) => (float[] y) {{ h = MatMul(x, m) e = Erf(h) a = Add({source}, b)"
        " y = MatMul(a, m) }",
        "onnxruntime",
        constraints=Constraints(never=frozenset(never)),
        m=normal(64, 64),
        b=normal(64),
    )
    assert decision(draft, "a") == expected


POOLS = {
    "MaxPool": "p = MaxPool<kernel_shape=[2,2]>(r)",
    "AveragePool": "p = AveragePool<kernel_shape=[2,2]>(r)",
    "GlobalAveragePool": "p = GlobalAveragePool(r)",
    "Resize": 'p = Resize<mode="nearest">(r, , s)',
}
POOLED = {
    "onnxruntime": POOLS.keys(),
    "openvino": POOLS.keys() - {"AveragePool"},  # it has no kernel for that
    "tensorrt": POOLS.keys(),
}


@pytest.mark.parametrize("dialect", ENGINES)
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("before", ["Relu", "Erf"])
def test_pools_between_quantized_ops(before: str, pool: str, dialect: str) -> None:
    weights = {"s": normal(4) * 0 + 1} if pool == "Resize" else {}
    body = f"{conv('c', 'x')} r = {before}(c) {POOLS[pool]} {conv('y', 'p')}"
    draft = draft_of_text(f"{IMAGE} {{ {body} }}", dialect, w=W, **weights)
    quantized, _ = decision(draft, "p")
    moves = dialect == "openvino" and pool in ("MaxPool", "Resize")  # what follows is quantized
    assert quantized == (pool in POOLED[dialect] and (before == "Relu" or moves))


@pytest.mark.parametrize("dialect", ["openvino", "tensorrt"])
@pytest.mark.parametrize("pool", ["MaxPool", "GlobalAveragePool"])
def test_a_pool_before_floats_stays_float(pool: str, dialect: str) -> None:
    body = f"{conv('c', 'x')} r = Relu(c) {POOLS[pool]} y = Erf(p)"
    assert not decision(draft_of_text(f"{IMAGE} {{ {body} }}", dialect, w=W), "p")[0]


def test_a_pool_of_what_is_quantized_anyway() -> None:
    """A Conv of ONNX Runtime writes integers, whoever reads them."""
    body = f"{conv('c', 'x')} r = Relu(c) {POOLS['GlobalAveragePool']} y = Erf(p)"
    draft = draft_of_text(f"{IMAGE} {{ {body} }}", "onnxruntime", w=W)
    assert decision(draft, "p") == (True, "pool or resize")


@pytest.mark.parametrize("dialect", ENGINES)
@pytest.mark.parametrize(
    ("operands", "behind", "joined"),
    [
        ("c, d", conv("y", "j"), True),
        ("c, e", conv("y", "j"), True),
        ("e, f", conv("y", "j"), False),
        ("c, d", "y = Erf(j)", False),
    ],
)
def test_joins_of_what_is_quantized(operands: str, behind: str, joined: bool, dialect: str) -> None:
    body = f"{conv('c', 'x')} {conv('d', 'x')} e = Erf(x) f = Sin(x) j = Concat<axis=1>({operands})"
    draft = draft_of_text(
        f"{IMAGE} {{ {body} {behind} }}".replace("(j, w)", "(j, v)"),
        dialect,
        w=W,
        **({"v": normal(16, 32, 3, 3)} if "Conv" in behind else {}),
    )
    quantized, rule = decision(draft, "j")
    if dialect == "openvino" and operands == "e, f":
        joined = True  # moves values: the pair of the Conv behind stands before it
    assert quantized == joined
    if quantized and operands != "e, f":
        assert rule == "Concat"
        assert "one scale" in decisions(draft)["j"].reason or dialect == "onnxruntime"
        assert {edge.tensor for edge in edges_into(draft, "j")} == set(operands.split(", "))


SILU = "s = Sigmoid(c) g = Mul(c, s)"


def test_a_gate_of_floats_stays_float() -> None:
    text = f"{IMAGE} {{ {conv('c', 'x')} e = Erf(x) g = Mul(c, e) {conv('y', 'g')} }}"
    assert decision(draft_of_text(text, "onnxruntime", w=W), "g") == (False, "no rule")


@pytest.mark.parametrize(("behind", "gated"), [(conv("y", "g"), True), ("y = Erf(g)", False)])
def test_gates_between_quantized_ops(behind: str, gated: bool) -> None:
    draft = draft_of_text(f"{IMAGE} {{ {conv('c', 'x')} {SILU} {behind} }}", "onnxruntime", w=W)
    expected = (True, "activation") if gated else (False, "no rule")
    assert decision(draft, "s") == decision(draft, "g") == expected


@pytest.mark.parametrize("dialect", ["openvino", "tensorrt"])
def test_gates_stay_float_elsewhere(dialect: str) -> None:
    text = f"{IMAGE} {{ {conv('c', 'x')} {SILU} {conv('y', 'g')} }}"
    assert not decision(draft_of_text(text, dialect, w=W), "g")[0]


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("between", "moved"), [("Identity", True), ("Erf", False)])
def test_moves_follow_what_they_move(between: str, moved: bool, dialect: str) -> None:
    body = f"{conv('c', 'x')} i = {between}(c) t = Transpose<perm=[0,1,3,2]>(i) e = Erf(t)"
    draft = draft_of_text(f"{IMAGE} {{ {body} y = Relu(e) }}", dialect, w=W)
    if dialect == "openvino":
        moved = False  # nobody behind it reads integers
    assert decision(draft, "t") == ((True, "moves values") if moved else (False, "follows"))


def test_an_add_beside_a_float_conv_stays_float() -> None:
    text = f"{IMAGE} {{ {conv('c', 'x')} {conv('d', 'x')} a = Add(c, d) {conv('y', 'a')} }}"
    draft = draft_of_text(text, "onnxruntime", constraints=Constraints(never=frozenset("d")), w=W)
    assert decision(draft, "d") == (False, "asked")
    assert decision(draft, "a") == (False, "no rule")


@pytest.mark.parametrize(
    ("behind", "expected"), [(conv("y", "a"), (True, "between")), ("y = Erf(a)", (False, "asked"))]
)
def test_what_is_left_float_is_told_as_it_comes(behind: str, expected: tuple[bool, str]) -> None:
    """ONNX Runtime makes an integer kernel of whatever stands between quantized tensors."""
    text = f"{IMAGE} {{ {conv('c', 'x')} {conv('d', 'x')} a = Add(c, d) {behind} }}"
    draft = draft_of_text(text, "onnxruntime", constraints=Constraints(never=frozenset("a")), w=W)
    assert len(edges_into(draft, "a")) == 2
    assert decision(draft, "a") == expected
