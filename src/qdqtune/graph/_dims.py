"""Dims as models write them: numbers, symbols, expressions of symbols, or unknown.

Exporters write expressions as text (`2*N`, `floor(H/2) + 1`). They are untrusted, so a small parser
here evaluates them, never an interpreter.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import onnx_ir as ir

Dim = int | str | None
"""A size, a symbol or expression, or unknown."""

# Placeholders that exporters write for unknown dims: no two of them are the same dim.
_BLANKS = frozenset({"", "?", "None", "-1"})

# A name may have dots, and hyphens that touch letters on both sides: `DynamicDimension.0`,
# `batch-size`. `N-1` and `a - b` are differences.
_NAME = re.compile(r"[^\W\d][\w.]*(?:-[^\W\d][\w.]*)*(\s*\()?")
_BETWEEN_NAMES = re.compile(r"[-+*/(),\d\s]*")
_LONGEST = 300
_DEEPEST = 30

_Number = Fraction | None
_OPERATORS: dict[type[ast.operator], Callable[..., Fraction | int]] = {
    ast.Add: Fraction.__add__,
    ast.Sub: Fraction.__sub__,
    ast.Mult: Fraction.__mul__,
    ast.Div: Fraction.__truediv__,
    ast.FloorDiv: Fraction.__floordiv__,
}
_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "ceiling": math.ceil,
    "min": lambda *numbers: min(numbers),
    "max": lambda *numbers: max(numbers),
}


def dims_of(value: ir.Value) -> tuple[Dim, ...] | None:
    """Return the dims of a graph input or output, None for unknown ones; None for unknown rank."""
    if value.shape is None:
        return None
    return tuple(_dim(dim) for dim in value.shape)


def symbols_in(text: str) -> tuple[str, ...]:
    """Return the symbols of a dim; a text that is not an expression is one symbol."""
    try:
        names: list[str] = []
        tree = _parsed(text, names)
        _value(tree, [None] * len(names))
    except _NotAnExpression:
        return (text,)
    return tuple(dict.fromkeys(names))


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
        names: list[str] = []
        tree = _parsed(text, names)
        result = _value(tree, [sizes.get(name) for name in names])
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


def _parsed(text: str, names: list[str]) -> ast.expr:
    """Parse an expression, with a number in place of each name, which is added to `names`."""

    def number(found: re.Match[str]) -> str:
        name = found[0].removesuffix("(").strip()
        if found[1] and name.lower() in _FUNCTIONS:
            return f" {name.lower()}("
        names.append(name)
        return f" _{len(names) - 1} {found[1] or ''}"

    if len(text) > _LONGEST or text.count("(") > _DEEPEST:
        raise _NotAnExpression
    if not _BETWEEN_NAMES.fullmatch(_NAME.sub("", text)):
        raise _NotAnExpression
    try:
        return ast.parse(_NAME.sub(number, text).strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _NotAnExpression from None


def _value(node: ast.expr, sizes: Sequence[int | None], depth: int = 0) -> _Number:
    """Evaluate an expression; unknown sizes make the result None."""
    if depth > _DEEPEST:
        raise _NotAnExpression
    function: Callable[..., Fraction | int]
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.Name(id=name) if name.startswith("_"):
            size = sizes[int(name[1:])]
            return None if size is None else Fraction(size)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            function, arguments = Fraction.__neg__, [operand]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            function, arguments = _OPERATORS[type(operator)], [left, right]
        case ast.Call(func=ast.Name(id=name), args=[_, *_] as arguments) if name in _FUNCTIONS:
            function = _FUNCTIONS[name]
        case _:
            raise _NotAnExpression
    numbers = [_value(argument, sizes, depth + 1) for argument in arguments]
    known = [number for number in numbers if number is not None]
    try:
        return Fraction(function(*known)) if len(known) == len(numbers) else None
    except (ZeroDivisionError, TypeError):  # TypeError: too few or too many arguments
        return None
