"""Tensors of a model are found in another form of it, with and without names in common."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex, name_nodes, values_in
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._tensor_matching import Match, Matching, match_tensors
from qdqtune.records._placement import Edge
from tests.conftest import model_from_text
from tests.models import small_models

RNG = np.random.default_rng(0)
KERNEL = RNG.normal(size=(4, 4, 3, 3)).astype(np.float32)
SQUARE = RNG.normal(size=(4, 4)).astype(np.float32)
OTHER = RNG.normal(size=(4, 4)).astype(np.float32)
VECTOR = RNG.normal(size=4).astype(np.float32)
IMAGE = "g (float[1,4,8,8] x) => (float[1,4,8,8] y)"
ROWS = "g (float[2,3,4] x) => (float[2,3,4] y)"


def index_of(model: onnx.ModelProto) -> GraphIndex:
    found = ir.from_proto(model)
    name_nodes(found)
    infer_shapes(found)
    return GraphIndex(found)


def matched(own: str, other: str, **constants: np.ndarray) -> Matching:
    """Match two models in text whose tensors have no names in common, except for constants."""
    pair = [index_of(model_from_text(text, **constants)) for text in (own, other)]
    return match_tensors(pair[0], pair[1], {})


def test_what_was_renamed_is_found_by_structure() -> None:
    found = matched(
        f"{IMAGE} {{ a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = Add(b, x) }}",
        "g (float[1,4,8,8] i) => (float[1,4,8,8] o) "
        "{ p = Conv<pads=[1,1,1,1]>(i, w) q = Relu(p) o = Add(i, q) }",
        w=KERNEL,
    )
    expected = {"i": "x", "p": "a", "q": "b", "o": "y", "w": "w"}
    assert found.tensors == {name: Match(own) for name, own in expected.items()}


def test_branches_are_told_apart_by_their_weights() -> None:
    found = matched(
        f"{ROWS} {{ q = MatMul(x, w) k = MatMul(x, v) s = Softmax(q) y = Mul(s, k) }}",
        f"{ROWS} {{ c = MatMul(x, v) d = MatMul(x, w) e = Softmax(d) y = Mul(e, c) }}",
        w=SQUARE, v=OTHER,
    )  # fmt: skip
    assert (found.tensors["c"].tensor, found.tensors["d"].tensor) == ("k", "q")
    assert found.tensors["y"] == Match("y")


def test_what_the_model_computes_in_one_op_stands_in_two_places() -> None:
    """Before a BatchNormalization that the model has folded, values are others."""
    batchnorm = "BatchNormalization(c, s, s, s, v)"
    other = f"{IMAGE} {{ c = Conv<pads=[1,1,1,1]>(x, w) n = {batchnorm} y = Relu(n) }}"
    constants = {"w": KERNEL, "s": VECTOR, "v": np.abs(VECTOR)}
    folded = ir.from_proto(model_from_text(other, **constants))
    name_nodes(folded)
    fold(folded)
    own = GraphIndex(folded)
    assert [node.op_type for node in own.nodes] == ["Conv", "Relu"]
    result = own.nodes[0].outputs[0].name or ""
    found = match_tensors(own, index_of(model_from_text(other, **constants)), {})
    assert found.tensors["c"] == Match(result, is_same=False)
    assert found.tensors["n"] == Match(result)
    assert found.tensors["y"] == Match("y")


def test_a_product_of_rows_is_a_product_of_matrices() -> None:
    """A Gemm between two Reshapes is what optimizers make of a MatMul and its bias."""
    found = matched(
        f"{ROWS} {{ m = MatMul(x, w) a = Add(m, b) y = Relu(a) }}",
        f"{ROWS} {{ r = Reshape(x, flat) g = Gemm(r, w, b) s = Reshape(g, back) y = Relu(s) }}",
        w=SQUARE, b=VECTOR, flat=np.array([-1, 4]), back=np.array([2, 3, 4]),
    )  # fmt: skip
    assert found.tensors["r"] == Match("x")
    assert found.tensors["g"] == found.tensors["s"] == Match("a")
    assert found.nodes["n1"] == "n0"
    assert found.readers(Edge("r", "n1", 0)) == [Edge("x", "n0", 0)]
    assert found.readers(Edge("x", "n0", 0)) == [Edge("x", "n0", 0)]


def test_an_activation_that_a_saturating_q_replaced() -> None:
    found = matched(
        f"{IMAGE} {{ a = Conv<pads=[1,1,1,1]>(x, w) r = Relu(a) y = Conv<pads=[1,1,1,1]>(r, w) }}",
        f"{IMAGE} {{ c = Conv<pads=[1,1,1,1]>(x, w) y = Conv<pads=[1,1,1,1]>(c, w) }}",
        w=KERNEL,
    )
    assert found.tensors["c"] == Match("r")
    assert found.readers(Edge("c", "n1", 0)) == [Edge("r", "n2", 0)]


def test_transposes_may_stand_elsewhere() -> None:
    found = matched(
        f"{ROWS} {{ a = Relu(x) t = Transpose<perm=[0,2,1]>(a) s = Sigmoid(t) "
        "u = Transpose<perm=[0,2,1]>(s) y = Add(u, a) }",
        f"{ROWS} {{ b = Relu(x) c = Sigmoid(b) y = Add(c, b) }}",
    )
    assert found.tensors["c"] == Match("s")
    assert found.readers(Edge("c", "n2", 0)) == [Edge("u", "n4", 0)]


def test_what_the_model_lacks_is_not_found_and_a_name_starts_anew() -> None:
    own = f"{ROWS} {{ a = Softplus(x) b = Sigmoid(a) y = Tanh(b) }}"
    other = f"{ROWS} {{ e = Exp(x) l = Log(e) b = Sigmoid(l) c = Tanh(b) y = Identity(c) }}"
    pair = [index_of(model_from_text(text)) for text in (own, other)]
    found = match_tensors(pair[0], pair[1], {"b": "b"}).tensors
    assert not {"e", "l"} & found.keys()
    assert (found["b"], found["c"]) == (Match("b"), Match("y"))


def test_several_ops_compute_what_one_did() -> None:
    """As ONNX Runtime writes a HardSwish, for which it has no kernel."""
    found = matched(
        f"{ROWS} {{ a = MatMul(x, w) h = HardSwish(a) y = MatMul(h, w) }}",
        f"{ROWS} {{ b = MatMul(x, w) s = HardSigmoid(b) h = Mul(b, s) y = MatMul(h, w) }}",
        w=SQUARE,
    )
    assert found.tensors["h"] == Match("h")
    assert "s" not in found.tensors
    assert found.nodes["n1"] == found.nodes["n2"] == "n1"
    for edge in (Edge("b", "n1", 0), Edge("b", "n2", 0)):
        assert found.readers(edge) == [Edge("a", "n1", 0)]
    assert found.readers(Edge("h", "n3", 0)) == [Edge("h", "n2", 0)]


@pytest.mark.parametrize(
    ("own", "other"),
    [("HardSwish(x)", "h = Exp(x)"), ("Softplus(x)", "s = Sigmoid(x) h = Mul(x, s)")],
)
def test_other_ops_with_a_result_of_the_same_name_are_not_the_same(own: str, other: str) -> None:
    found = matched(
        f"{ROWS} {{ h = {own} y = MatMul(h, w) }}", f"{ROWS} {{ {other} y = MatMul(h, w) }}",
        w=SQUARE,
    )  # fmt: skip
    assert "h" not in found.tensors


@settings(deadline=None, max_examples=30)
@given(model=small_models(), seed=st.integers(0, 99))
def test_all_of_a_renamed_model_is_found(model: onnx.ModelProto, seed: int) -> None:
    """What can't be told apart computes the same."""
    own, renamed = index_of(model), ir.from_proto(model)
    values = list(values_in(renamed.graph))
    random.Random(seed).shuffle(values)
    names = {value.name: f"v{number}" for number, value in enumerate(values)}
    for value in values:
        value.name = names[value.name]
    name_nodes(renamed)
    other = GraphIndex(renamed)
    found = match_tensors(own, other, {}).tensors
    assert found.keys() >= {value.name for node in renamed.graph for value in node.outputs}
    for name, match in found.items():
        if names[match.tensor] != name:  # an equal op on equal inputs
            theirs, ours = other.value[name].producer(), own.value[match.tensor].producer()
            assert theirs is not None
            assert ours is not None
            assert theirs.op_type == ours.op_type
