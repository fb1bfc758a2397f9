"""Dims written as text are read by a small grammar, and never by an interpreter."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.graph._input_shapes import evaluate, symbols_in

SIZES = {"N": 4, "H": 9, "seq": 6, "DynamicDimension.0": 3, "batch-size": 2, "unk__12": 5}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("N", 4),
        ("8", 8),
        ("2*N", 8),
        (" N + 1 ", 5),
        ("N-1", 3),
        ("N*seq", 24),
        ("floor(H/2)", 4),
        ("ceiling(H/2)", 5),
        ("H//2 + 1", 5),
        ("(H - 1)//2 + 1", 5),
        ("Max(1, N - 8)", 1),
        ("min(N, H, seq)", 4),
        ("-N + H", 5),
        ("H - 2*(N - 1)", 3),
        ("12/N", 3),
        ("2*DynamicDimension.0", 6),
        ("batch-size*2", 4),
        ("unk__12", 5),
    ],
)
def test_what_an_expression_comes_to(text: str, size: int) -> None:
    assert evaluate(text, SIZES) == size


@pytest.mark.parametrize(
    "text",
    [
        "M", "N + M", "H/2", "N - 4", "N - 9", "N/(N - 4)", "N//0", "floor(N, 2)", "N**2", "N[0]",
        "__import__('os').getcwd()", "N +", "(N", "N)", ")", "", "N N", "floor()", "?",
        "f(N)", "2(N)", "2N", "N_(2)", "'\\d'", "N if N else N", "N, N", "max(N, *H)", "0x10",
        "(" * 5000 + "N" + ")" * 5000, "-" * 200 + "N", "(" * 40 + "N" + ")" * 40,
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_what_is_no_size_stays_open(text: str) -> None:
    assert evaluate(text, SIZES) is None


def test_the_whole_text_can_be_bound() -> None:
    assert evaluate("a strange (name", {"a strange (name": 7}) == 7
    assert evaluate("2*N", {"N": 4, "2*N": 7}) == 7


@pytest.mark.parametrize(
    ("text", "symbols"),
    [
        ("N", ("N",)),
        ("2*N + floor(H/N)", ("N", "H")),
        ("batch-size", ("batch-size",)),
        ("p2o.DynamicDimension.0", ("p2o.DynamicDimension.0",)),
        ("sequence length", ("sequence length",)),
        ("floor", ("floor",)),
        ("8", ()),
    ],
)
def test_symbols(text: str, symbols: tuple[str, ...]) -> None:
    assert symbols_in(text) == symbols


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> tuple[str, float]:
    """A text and what it comes to, by Python's own arithmetic."""
    if depth == 0 or draw(st.booleans()):
        name = draw(st.sampled_from(["a", "b", "3"]))
        return name, {"a": 5, "b": 12, "3": 3}[name]
    (left, x), (right, y) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    kind = draw(st.sampled_from(["+", "-", "*", "//", "min", "max"]))
    if kind in ("min", "max"):
        return f"{kind}({left}, {right})", min(x, y) if kind == "min" else max(x, y)
    if kind == "//" and y == 0:
        return f"({left})", x
    results = {"+": x + y, "-": x - y, "*": x * y, "//": x // y if y else 0}
    return f"({left}) {kind} ({right})", results[kind]


@given(expressions())
def test_arithmetic_is_the_usual_one(case: tuple[str, float]) -> None:
    text, expected = case
    found = evaluate(text, {"a": 5, "b": 12})
    assert found == (expected if expected >= 1 else None)
    assert found is None or math.isclose(found, expected)


@given(st.text(max_size=40))
def test_any_text_is_survived(text: str) -> None:
    assert evaluate(text, {"N": 2}) is None or evaluate(text, {"N": 2}) >= 1  # type: ignore[operator]
    symbols_in(text)
