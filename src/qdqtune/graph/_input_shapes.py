"""The declared shapes of a model's inputs, combined with those that a user requests.

Dims are numbers, symbols, expressions of symbols, or unknown. Exporters write expressions as text
(`2*N`, `floor(H/2) + 1`). They are untrusted, so a small parser here evaluates them, never an
interpreter.
"""

from __future__ import annotations

import ast
import difflib
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

import onnx_ir as ir

from qdqtune.graph._validity import MOST_DIMS
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest, shape_text

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


_logger = logging.getLogger(__name__)

Dims = tuple[Dim, ...]
Inputs = Mapping[str, Dims | None]
"""The dims of every input that must be fed, by name; None where the rank is unknown."""


def model_inputs(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that must be fed: old files list their weights as inputs, too."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


def input_dims(model: ir.Model) -> dict[str, Dims | None]:
    """Return the dims of every input that must be fed; None where the rank is unknown."""
    return {value.name or "": dims_of(value) for value in model_inputs(model)}


def symbols_of(inputs: Inputs) -> tuple[str, ...]:
    """Return the symbols in the inputs' dims, in order."""
    return tuple(dict.fromkeys(name for text in _texts(inputs) for name in symbols_in(text)))


def bind_dims(
    inputs: Inputs, request: InputRequest, *, change_fixed: bool = False
) -> dict[str, Dims | None]:
    """Return the inputs' dims as far as the model and the request determine them.

    A symbol has one size: a shape given for one input binds its symbols for all others.

    Args:
        inputs: The inputs that the model declares.
        request: The user's request.
        change_fixed: Whether dims that the model fixes may change.

    Raises:
        UsageError: If the request names unknown inputs or dims, or contradicts the model or itself.
    """
    shapes = {input_named(inputs, name): shape for name, shape in request.shapes.items()}
    said = [(symbol, size, f"--dim {symbol}={size}") for symbol, size in request.dims.items()]
    for symbol in request.dims:
        _check_symbol(symbol, inputs)
    for name, shape in shapes.items():
        _check_shape(name, inputs[name], shape, change_fixed)
        for axis, (dim, size) in enumerate(zip(inputs[name] or (), shape, strict=False)):
            if isinstance(dim, str) and size is not None:
                said.append((dim, size, f"{name}[{axis}]"))
    sizes = _agreed_sizes(said)
    return {
        name: _filled(dims, shapes.get(name, ()), sizes) if dims is not None else shapes.get(name)
        for name, dims in inputs.items()
    }


def changes_fixed(declared: Inputs, bound: Inputs) -> bool:
    """Whether a dim that the model fixes changes."""
    return any(
        isinstance(old, int) and old != new
        for name, dims in bound.items()
        for old, new in zip(declared[name] or (), dims or (), strict=False)
    )


def resolve_shapes(model: ir.Model, request: InputRequest) -> dict[str, tuple[int, ...]]:
    """Return the concrete shape of every input that must be fed; dims that stay open are 1.

    Args:
        model: The model; it is not changed.
        request: The user's request.

    Raises:
        UsageError: If the request names unknown inputs or dims, or contradicts the model or itself.
        ModelError: If the rank of an input is unknown.
    """
    bound = bind_dims(input_dims(model), request)
    ones = dict.fromkeys(symbols_of(bound), 1)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, dims in bound.items():
        if dims is None:
            raise ModelError(
                f"The input {name!r} has no shape in the model, not even a rank.",
                f"Give one: --shapes {name}:1x3x224x224.",
            )
        shapes[name] = tuple(
            dim if isinstance(dim, int) else (dim is not None and evaluate(dim, ones)) or 1
            for dim in dims
        )
    _warn_of_open(bound, shapes)
    return shapes


def input_named(inputs: Inputs, name: str) -> str:
    """Return the input with a name; "" stands for the only input.

    Raises:
        UsageError: If no input has that name, or "" is ambiguous.
    """
    if name in inputs:
        return name
    shown = [f"{each}:{shape_text(dims)}" for each, dims in inputs.items()]
    listed = f"Its inputs: {', '.join(shown) or 'none'}."
    if name:
        close = difflib.get_close_matches(name, inputs, n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"The model has no input {name!r}.", hint + listed)
    if len(inputs) != 1:
        raise UsageError(f"The model has {len(inputs)} inputs: say which one is meant.", listed)
    return next(iter(inputs))


def _check_symbol(symbol: str, inputs: Inputs) -> None:
    symbols = symbols_of(inputs)
    if symbol in symbols or symbol in _texts(inputs):
        return
    close = difflib.get_close_matches(symbol, symbols, n=1)
    hint = f"Did you mean {close[0]!r}? " if close else ""
    there = f"Symbols: {', '.join(symbols)}." if symbols else ""
    raise UsageError(
        f"No dim of an input is called {symbol!r}.",
        hint + (there or "No dim has a name: give whole shapes, --shapes NAME:1x3x8x8."),
    )


def _agreed_sizes(said: Iterable[tuple[str, int, str]]) -> dict[str, int]:
    """Return the sizes of symbols and whole expressions.

    Args:
        said: Each symbol or expression with its size, and the source of that size.

    Raises:
        UsageError: If they contradict each other.
    """
    sizes: dict[str, int] = {}
    places: dict[str, str] = {}
    for text, size, where in said:
        known, place = sizes.setdefault(text, size), places.setdefault(text, where)
        if known != size:
            raise UsageError(
                f"The dim {text!r} is {known} by {place}, but {size} by {where}.",
                "A symbol has the same size wherever it stands.",
            )
    for text, size in sizes.items():
        others = {symbol: number for symbol, number in sizes.items() if symbol != text}
        expected = evaluate(text, others)
        if expected not in (None, size):
            raise UsageError(
                f"The dim {text!r} is {size} by {places[text]}, but {expected} by the sizes of its "
                "symbols.",
                "Leave one of them out.",
            )
    return sizes


def _filled(dims: Dims, given: Sequence[int | None], sizes: Mapping[str, int]) -> Dims:
    """Return the dims with every known size filled in."""
    return tuple(
        size if size is not None else bound_dim(dim, sizes)
        for dim, size in zip(dims, given or [None] * len(dims), strict=True)
    )


def bound_dim(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return a dim's size if those of its symbols are known, else the dim."""
    return (evaluate(dim, sizes) or dim) if isinstance(dim, str) else dim


def _texts(inputs: Inputs) -> list[str]:
    return [dim for dims in inputs.values() for dim in dims or () if isinstance(dim, str)]


def _check_shape(
    name: str, dims: Dims | None, shape: Sequence[int | None], change_fixed: bool
) -> None:
    if len(shape) > MOST_DIMS:
        raise UsageError(
            f"The shape for the input {name!r} has {len(shape)} dims; arrays have {MOST_DIMS} at "
            "most.",
            "Give a shape of fewer dims.",
        )
    if dims is None:
        return
    if len(dims) != len(shape):
        raise UsageError(
            f"The input {name!r} has {len(dims)} dims, {shape_text(dims)}, but the shape "
            f"{shape_text(shape)} has {len(shape)}.",
            "Give a size for every dim.",
        )
    for axis, (dim, size) in enumerate(zip(dims, shape, strict=True)):
        if isinstance(dim, int) and size not in (None, dim) and not change_fixed:
            raise UsageError(
                f"Dim {axis} of the input {name!r} is fixed at {dim} in the model; it can't be "
                f"{size}.",
                f"Change the model first: qdqtune shapes MODEL --set {name}:{shape_text(shape)} "
                "-o OUT.",
            )


def _warn_of_open(bound: Inputs, shapes: Mapping[str, tuple[int, ...]]) -> None:
    places: dict[str, list[str]] = {}
    unnamed: dict[str, str] = {}
    for name, dims in bound.items():
        for axis, dim in enumerate(dims or ()):
            where = f"{name}[{axis}]"
            if dim is None:
                unnamed[where] = f"--shapes {name}:{shape_text(shapes[name])}"
            elif isinstance(dim, str):
                for symbol in symbols_in(dim):
                    places.setdefault(symbol, []).append(where)
    if not places and not unnamed:
        return
    open_dims = [f"{symbol} ({', '.join(where)})" for symbol, where in places.items()]
    flags = [f"--dim {symbol}=SIZE" for symbol in places] + list(dict.fromkeys(unnamed.values()))
    _logger.warning(
        "open dims are taken as 1: %s; give them sizes with %s",
        ", ".join([*open_dims, *unnamed]),
        " ".join(flags),
    )
