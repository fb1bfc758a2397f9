"""Products that are quantized at run time, if that was asked for."""

from __future__ import annotations

import pytest

from qdqtune.rules._placement_draft import Constraints, Draft, RuleDecision
from tests.rules.drafting import decision, decisions, draft_of_text, normal

DYNAMIC = Constraints(dynamic=True)
BLOCK = """(float[1,64,128] x) => (float[1,64,128] y) {
    h = MatMul(x, w1)
    s = Add(h, x)
    n = LayerNormalization<axis=-1>(s, g, b)
    t = Transpose<perm=[0,2,1]>(n)
    a = MatMul(n, t)
    c = MatMul(a, n)
    y = MatMul(c, w2)
}"""
WEIGHTS = {"w1": normal(128, 128), "w2": normal(128, 128), "g": normal(128), "b": normal(128)}


def block(constraints: Constraints = DYNAMIC, dialect: str = "onnxruntime") -> Draft:
    return draft_of_text(BLOCK, dialect, constraints=constraints, **WEIGHTS)


def test_products_with_weights_are_dynamic_and_those_without_stay_float() -> None:
    draft = block()
    assert draft.placement().dynamic == {"h", "y"}
    assert not draft.placement().edges
    found = decisions(draft)
    assert (found["h"].quantized, found["h"].dynamic, found["h"].rule) == (True, True, "dynamic")
    assert decision(draft, "a") == (False, "dynamic")
    assert "both operands are computed" in found["c"].reason


def test_without_being_asked_for_nothing_is() -> None:
    draft = block(Constraints())
    assert not draft.placement().dynamic
    assert not draft.placement().unfused
    assert decision(draft, "h") == (True, "weighted op")


def test_a_sum_before_a_normalization_is_kept_apart() -> None:
    draft = block()
    assert draft.placement().unfused == {"s"}
    assert decision(draft, "s") == (False, "unfused sum")
    assert not block(dialect="openvino").placement().unfused


@pytest.mark.parametrize(
    ("rows", "width", "is_dynamic"),
    [(1, 384, False), (1, 512, True), (64, 32, False), (64, 64, True), (512, 32, True)],
)
def test_it_depends_on_the_multiplications(rows: int, width: int, is_dynamic: bool) -> None:
    text = f"(float[{rows},{width}] x) => (float[{rows},{width}] y) {{ y = MatMul(x, w) }}"
    draft = draft_of_text(text, "onnxruntime", constraints=DYNAMIC, w=normal(width, width))
    assert decision(draft, "y") == (is_dynamic, "dynamic")


def test_with_an_unknown_number_of_rows_it_depends_on_the_weight() -> None:
    text = "(float[N,256] x) => (float[N,256] y) { y = MatMul(x, w) }"
    draft = draft_of_text(text, "onnxruntime", constraints=DYNAMIC, w=normal(256, 256))
    assert decision(draft, "y") == (True, "dynamic")


def test_ops_that_are_to_stay_float_do() -> None:
    why = {"h": RuleDecision("accuracy", "because")}
    draft = block(DYNAMIC.without(why))
    assert draft.placement().dynamic == {"y"}
    assert decision(draft, "h") == (False, "accuracy")
    assert not block(DYNAMIC.without({**why, "y": why["h"]})).placement()


def test_parts_of_it() -> None:
    draft = block()
    assert draft.quantized >= {"h", "y"}
    assert draft.only({"h"}).dynamic == {"h"}
    assert not draft.only({"h"}).edges
    assert draft.without({"h"}).dynamic == {"y"}


def test_where_the_engine_does_it_weights_are_enough() -> None:
    draft = block(dialect="openvino")
    assert not draft.placement().dynamic
    assert {(edge.node, edge.position) for edge in draft.placement().edges} == {("h", 1), ("y", 1)}
    found = decisions(draft)["h"]
    assert (found.quantized, found.dynamic) == (True, True)


@pytest.mark.parametrize(("hidden", "is_dynamic"), [(32, False), (64, True)])
def test_lstms_with_large_weights_are_dynamic(hidden: int, is_dynamic: bool) -> None:
    text = (
        f"(float[16,1,{hidden}] x) => (float[16,1,1,{hidden}] y)"
        f" {{ y = LSTM<hidden_size={hidden}>(x, w, r) }}"
    )
    weights = {name: normal(1, 4 * hidden, hidden) for name in "wr"}
    draft = draft_of_text(text, "onnxruntime", constraints=DYNAMIC, **weights)
    assert decision(draft, "y") == (is_dynamic, "dynamic")
