"""Small files that fold into large ones: only where it pays, and never without end."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._fold_limits import FoldLimits
from qdqtune.graph._folding import fold
from tests.conftest import model_from_text

MATMUL = "g (float[1,8] x) => (float[1,8] y) {{ w = {made} y = MatMul(x, w) }}"
ADD = "g (float[1,8] x) => (float[1,8] y) {{ w = {made} y = Add(x, w) }}"


def decide(text: str, **weights: np.ndarray) -> bool:
    model = ir.from_proto(model_from_text(text, **weights))
    return FoldLimits().allow(next(iter(model.graph)))


@pytest.mark.parametrize(
    ("text", "shape", "folded"),
    [
        (ADD, [100, 100], True),
        (ADD, [1000, 1000], False),
        (MATMUL, [1000, 1000], True),
        (MATMUL, [25088, 4096], True),  # the largest layer of VGG
        (MATMUL, [1 << 14, 1 << 14], False),
        (MATMUL, [1 << 62, 1 << 62], False),
        (MATMUL, [-1, 4], False),
    ],
)
@pytest.mark.parametrize("made", ["ConstantOfShape(s)", "Expand(one, s)", "Tile(one, s)"])
def test_what_only_saves_space(text: str, made: str, shape: list[int], folded: bool) -> None:
    one = np.ones((1, 1), np.float32)
    weights = {"s": np.array(shape)} | ({"one": one} if "one" in made else {})
    assert decide(text.format(made=made), **weights) is folded


@pytest.mark.parametrize(
    ("ends", "folded"),
    [((0, 100, 1), True), ((0, 1 << 40, 1), False), ((0, 10, 0), False), ((9, 0, -1), True)],
)
def test_ranges(ends: tuple[int, int, int], folded: bool) -> None:
    weights = {name: np.array(end) for name, end in zip("abc", ends, strict=True)}
    text = "g (int64[1] x) => (int64[N] y) { r = Range(a, b, c) y = Add(x, r) }"
    assert decide(text, **weights) is folded


def test_broadcasts_are_counted() -> None:
    text = "g (float[1] x) => (float[N,M] y) { p = Mul(a, b) y = Add(x, p) }"
    for length, folded in ((100, True), (5000, False)):
        column = np.ones((length, 1), np.float32)
        assert decide(text, a=column, b=column.T) is folded


def test_many_weights_have_one_limit() -> None:
    made = " ".join(f"w{i} = ConstantOfShape(s) y{i} = MatMul(x, w{i})" for i in range(4))
    outputs = ", ".join(f"float[1,8] y{i}" for i in range(4))
    text = f"g (float[1,8] x) => ({outputs}) {{ {made} }}"
    model = ir.from_proto(model_from_text(text, s=np.array([1 << 13, 1 << 14])))
    limits = FoldLimits()
    made_nodes = [node for node in model.graph if node.op_type == "ConstantOfShape"]
    assert [limits.allow(node) for node in made_nodes] == [True, True, False, False]


@pytest.mark.parametrize("made", ["ConstantOfShape(s)", "Expand(one, s)", "Tile(one, s)"])
def test_bombs_are_not_set_off(made: str) -> None:
    weights = {"s": np.array([1 << 40, 1 << 40])}
    weights |= {"one": np.ones((1, 1), np.float32)} if "one" in made else {}
    model = ir.from_proto(model_from_text(ADD.format(made=made), **weights))
    fold(model)
    assert len(model.graph) == 2


@pytest.mark.parametrize(
    "step",
    [
        "{after} = Concat<axis = 0>({before}, {before})",
        "{after} = Tile({before}, two)",
        "{after} = Gather<axis = 0>({before}, i)",
        # The first of the two makes a constant of its own.
        "{between} = Neg({before}) {after} = Concat<axis = 0>({between}, {before})",
    ],
)
def test_what_doubles_again_and_again_is_folded_up_to_a_limit(step: str) -> None:
    levels = 60
    steps = " ".join(
        step.format(before=f"w{n}", between=f"u{n}", after=f"w{n + 1}") for n in range(levels)
    )
    text = f"g (float[1] x) => (float[N] y) {{ w0 = Identity(w) {steps} y = Add(x, w{levels}) }}"
    weights = {"w": np.ones(2, np.float32)}
    weights |= {"two": np.array([2])} if "two" in step else {}
    weights |= {"i": np.array([0, 1, 0, 1])} if "i)" in step else {}
    model = ir.from_proto(model_from_text(text, **weights))
    for _ in range(4):  # what was made counts when it is folded once more
        fold(model)
    largest = max(tensor.const_value.size for tensor in model.graph.initializers.values())
    assert largest <= 1 << 17


def test_results_that_do_not_grow_have_a_limit_together() -> None:
    text = "g (float[1] x) => (float[N] y) { n = Neg(w) y = Add(x, n) }"
    model = ir.from_proto(model_from_text(text, w=np.ones(1, np.float32)))
    node = next(iter(model.graph))
    large = np.broadcast_to(np.float32(1), (1 << 26,))  # 256 MiB that are not there
    node.inputs[0].const_value = ir.Tensor(large)
    for given, times in (({}, 4), ({"w": ir.Tensor(large)}, 12)):
        limits = FoldLimits(given)
        assert [limits.allow(node) for _ in range(20)] == [True] * times + [False] * (20 - times)


def test_ops_that_are_slow_to_compute_are_counted_as_such() -> None:
    text = "g (float[1] x) => (float[N] y) { s = ScatterND(w, i, u) y = Add(x, s) }"
    ones = np.ones(1 << 22, np.float32)
    indices = np.zeros((1 << 22, 1), np.int64)
    assert not decide(text, w=ones, i=indices, u=ones)
    assert decide(text, w=ones, i=indices[:1000], u=ones[:1000])


def test_strings_stay_where_they_are() -> None:
    text = """g (float[1,4] x) => (float[1,4] y, string[2] names) {
        names = Identity(words)
        y = Add(x, w)
    }"""
    proto = model_from_text(text, w=np.ones(4, np.float32))
    words = onnx.helper.make_tensor("words", onnx.TensorProto.STRING, [2], [b"cat", b"dog"])
    proto.graph.initializer.append(words)
    model = ir.from_proto(proto)
    fold(model)
    assert [node.op_type for node in model.graph] == ["Identity", "Add"]
