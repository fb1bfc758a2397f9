"""Dims as models write them: numbers, symbols, expressions of symbols, or unknown.

Exporters write expressions as text (`2*N`, `floor(H/2) + 1`). They are untrusted, so a small parser
here evaluates them, never an interpreter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

import onnx_ir as ir

Dim = int | str | None
"""A size, a symbol or expression, or unknown."""

# Placeholders that exporters write for unknown dims: no two of them are the same dim.
_BLANKS = frozenset({"", "?", "None", "-1"})

# A name may have dots, and hyphens that touch letters on both sides: `DynamicDimension.0`,
# `batch-size`. `N-1` and `a - b` are differences.
_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d][\w.]*(?:-[^\W\d][\w.]*)*)|(//|[-+*/(),]))")
_LONGEST = 300
_DEEPEST = 30


def dims_of(value: ir.Value) -> tuple[Dim, ...] | None:
    """Return the dims of a graph input or output, None for unknown ones; None for unknown rank."""
    if value.shape is None:
        return None
    return tuple(_dim(dim) for dim in value.shape)


def symbols_in(text: str) -> tuple[str, ...]:
    """Return the symbols of a dim; a text that is not an expression is one symbol."""
    try:
        reader = _Reader(text, {})
    except _NotAnExpression:
        return (text,)
    return tuple(dict.fromkeys(reader.names))


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Evaluate a symbol or expression.

    Args:
        text: The dim.
        sizes: Sizes of symbols; a symbol that equals the whole text takes precedence.

    Returns:
        The size; None if symbols are missing, or if the result is not a size.
    """
    if text in sizes:
        return sizes[text]
    try:
        result = _Reader(text, sizes).result
    except _NotAnExpression:
        return None
    if result is None or result.denominator != 1 or result < 1:
        return None
    return int(result)


def _dim(dim: int | ir.SymbolicDim) -> Dim:
    if isinstance(dim, int):
        return dim if dim > 0 else None
    return None if dim.value is None or dim.value.strip() in _BLANKS else dim.value


class _NotAnExpression(Exception):
    """The text does not follow the grammar."""


_Number = Fraction | None


class _Reader:
    """Evaluates an expression in one pass; unknown symbols make the result None.

    Attributes:
        names: Every symbol met.
        result: The value.
    """

    def __init__(self, text: str, sizes: Mapping[str, int]) -> None:
        self.names: list[str] = []
        self._sizes = sizes
        self._tokens = _tokens(text)
        self._depth = 0
        self.result = self._sum()
        if self._tokens:
            raise _NotAnExpression

    def _sum(self) -> _Number:
        value = self._product()
        while operator := self._take("+", "-"):
            value = _apply(_OPERATORS[operator], value, self._product())
        return value

    def _product(self) -> _Number:
        value = self._atom()
        while operator := self._take("*", "/", "//"):
            value = _apply(_OPERATORS[operator], value, self._atom())
        return value

    def _atom(self) -> _Number:
        self._depth += 1
        if self._depth > _DEEPEST or not self._tokens:
            raise _NotAnExpression
        value: _Number
        if self._take("("):
            value = self._sum()
            self._expect(")")
        elif self._take("-"):
            value = _apply(Fraction.__neg__, self._atom())
        else:
            value = self._leaf(self._tokens.pop(0))
        self._depth -= 1
        return value

    def _leaf(self, token: str) -> _Number:
        if token.isdigit():
            return Fraction(int(token))
        if token in _PUNCTUATION:
            raise _NotAnExpression
        if token.lower() in _FUNCTIONS and self._take("("):
            arguments = [self._sum()]
            while self._take(","):
                arguments.append(self._sum())
            self._expect(")")
            return _apply(_FUNCTIONS[token.lower()], *arguments)
        self.names.append(token)
        size = self._sizes.get(token)
        return None if size is None else Fraction(size)

    def _take(self, *wanted: str) -> str:
        return self._tokens.pop(0) if self._tokens and self._tokens[0] in wanted else ""

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise _NotAnExpression


def _tokens(text: str) -> list[str]:
    if len(text) > _LONGEST:
        raise _NotAnExpression
    tokens, position, end = [], 0, len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        if token is None:
            raise _NotAnExpression
        tokens.append(token[0].strip())
        position = token.end()
    return tokens


def _apply(function: Callable[..., Fraction | int], *arguments: _Number) -> _Number:
    if any(argument is None for argument in arguments):
        return None
    try:
        return Fraction(function(*arguments))
    except (ZeroDivisionError, TypeError):  # TypeError: too few or too many arguments
        return None


_PUNCTUATION = frozenset({"+", "-", "*", "/", "//", "(", ")", ","})
_OPERATORS: dict[str, Callable[..., Fraction | int]] = {
    "+": Fraction.__add__,
    "-": Fraction.__sub__,
    "*": Fraction.__mul__,
    "/": Fraction.__truediv__,
    "//": Fraction.__floordiv__,
}
_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "ceiling": math.ceil,
    "min": lambda *numbers: min(numbers),
    "max": lambda *numbers: max(numbers),
}
