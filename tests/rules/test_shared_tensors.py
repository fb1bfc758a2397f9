"""A residual Add reads what is quantized for TensorRT anyway."""

from __future__ import annotations

import pytest

from qdqtune.records._placement import Edge
from qdqtune.rules._placement_draft import Constraints
from tests.rules.drafting import draft_of_text, normal

BLOCK = """(float[1,32,8,8] x) => (float[1,32,8,8] y) {
  h = Relu(x) c = Conv<pads = [1, 1, 1, 1]>(h, w) g = Erf(c) m = Mul(g, c) y = Add(h, m) }"""
RESIDUAL = Edge("h", "y", 0)
WEIGHT = normal(32, 32, 3, 3)


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
def test_a_residual_branch_reads_what_the_conv_reads(dialect: str) -> None:
    draft = draft_of_text(BLOCK, dialect, w=WEIGHT)
    assert RESIDUAL in draft.placement().edges
    assert draft.extra[RESIDUAL] == "shared tensor"


@pytest.mark.parametrize(
    "constraints",
    [
        Constraints(never=frozenset({"y"})),
        Constraints(never=frozenset({"c"})),
        Constraints(frozenset({"c"})),
    ],
    ids=["reader excluded", "Conv excluded", "Conv only"],
)
def test_unless_somebody_does_not_want_that(constraints: Constraints) -> None:
    draft = draft_of_text(BLOCK, "tensorrt", constraints=constraints, w=WEIGHT)
    assert RESIDUAL not in draft.placement().edges


def test_other_rules_go_first() -> None:
    draft = draft_of_text(
        """(float[1,64,64] x, float[1,64,64] mask) => (float[1,64,64] y, float[1,64,64] z) {
        s = Relu(x) z = MatMul(s, w) t = Add(s, mask) y = Softmax<axis = -1>(t) }""",
        "tensorrt",
        w=normal(64, 64),
    )
    assert draft.chosen == {"z"}
    assert Edge("s", "t", 0) not in draft.placement().edges


def test_only_an_add_shares() -> None:
    draft = draft_of_text(
        """(float[4,64] x) => (float[4,64] y, float[4,64] n) {
        h = Relu(x) y = MatMul(h, w) n = Erf(h) }""",
        "tensorrt",
        w=normal(64, 64),
    )
    assert draft.chosen == {"y"}
    assert not draft.extra
