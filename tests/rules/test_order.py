"""The order of the rules, what users say, and that the docs tell all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qdqtune.qdq.dialects import DIALECTS
from qdqtune.rules._order import RULES
from qdqtune.rules._placement_draft import Constraints
from tests.rules.drafting import decision, decisions, draft_of_text, normal

PAGE = Path(__file__).parent.parent.parent / "docs" / "extend" / "rule.md"
FAMILIES = {
    "ONNX Runtime": ("onnxruntime", "onnxruntime-novnni"),
    "OpenVINO": ("openvino", "openvino-novnni"),
    "TensorRT": ("tensorrt", "tensorrt-8"),
}
TEXT = (
    "(float[1,16,8,8] x) => (float[] y) { c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c)"
    " d = Conv<pads=[1,1,1,1]>(r, w) a = Add(d, x) t = Transpose<perm=[0,1,3,2]>(a)"
    " y = Conv<pads=[1,1,1,1]>(t, w) }"
)
W = normal(16, 16, 3, 3)


def test_every_dialect_has_rules() -> None:
    assert set(RULES) == set(DIALECTS)
    for dialects in FAMILIES.values():
        assert len({RULES[name] for name in dialects}) == 1
    assert {name for names in FAMILIES.values() for name in names} == set(RULES)


@pytest.mark.parametrize("dialect", RULES)
def test_rules_say_who_and_why(dialect: str) -> None:
    names = [rule.name for rule in RULES[dialect]]
    assert len(set(names)) == len(names)
    assert names[0] == "asked"
    assert all(len(rule.reason) > 20 and rule.reason.endswith(".") for rule in RULES[dialect])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_page_has_the_rules_in_their_order(family: str) -> None:
    header, _, *rows = _table()
    column = header.index(family)
    listed = {row[0]: row[column] for row in rows}
    expected = [rule.name for rule in RULES[FAMILIES[family][0]]]
    assert [name for name, place in listed.items() if place] == sorted(
        expected, key=list(listed).index
    )
    in_order = sorted((name for name in listed if listed[name]), key=lambda n: int(listed[n]))
    assert in_order == expected


def _table() -> list[list[str]]:
    """The table of rules: cells of every line."""
    lines = re.findall(r"^\| (?:rule|---|`).*ONNX Runtime.*\n(?:\|.*\n)+", PAGE.read_text(), re.M)
    (table,) = lines
    return [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in table.splitlines()
    ]


@pytest.mark.parametrize("dialect", RULES)
def test_what_is_asked_for_goes_first(dialect: str) -> None:
    draft = draft_of_text(TEXT, dialect, constraints=Constraints(never=frozenset("d")), w=W)
    assert decision(draft, "d") == (False, "asked")
    assert decision(draft, "c") == decision(draft, "y") == (True, "weighted op")


@pytest.mark.parametrize("dialect", RULES)
def test_only_what_is_asked_for(dialect: str) -> None:
    constraints = Constraints(only=frozenset("cd"), never=frozenset("d"))
    draft = draft_of_text(TEXT, dialect, constraints=constraints, w=W)
    assert draft.chosen - draft.planner.passthrough.keys() == {"c"}
    assert decision(draft, "c") == (True, "asked")
    assert {name for name, each in decisions(draft).items() if each.quantized} == {"c"}


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino"])
def test_what_moves_between_what_is_asked_for_goes_along(dialect: str) -> None:
    text = (
        "(float[1,16,8,8] x) => (float[] y) { c = Conv<pads=[1,1,1,1]>(x, w)"
        " t = Transpose<perm=[0,1,3,2]>(c) y = Conv<pads=[1,1,1,1]>(t, w) }"
    )
    draft = draft_of_text(text, dialect, constraints=Constraints(only=frozenset("cy")), w=W)
    assert decision(draft, "t") == (True, "moves values")


@pytest.mark.parametrize("dialect", RULES)
def test_asked_again_the_rules_say_the_same(dialect: str) -> None:
    draft = draft_of_text(TEXT, dialect, w=W)
    before = draft.version
    for rule in RULES[dialect]:
        rule.apply(draft)
    assert draft.version == before


def test_a_constraint_overrules_a_rule() -> None:
    """A Gemm for one row stays float for TensorRT, unless it is asked for."""
    text = "(float[1,64] x) => (float[] y) { h = MatMul(x, w) y = Relu(h) }"
    asked = Constraints(only=frozenset("h"))
    w = normal(64, 64)
    assert decision(draft_of_text(text, "tensorrt", w=w), "h") == (False, "GEMV")
    assert decision(draft_of_text(text, "tensorrt", constraints=asked, w=w), "h") == (True, "asked")
