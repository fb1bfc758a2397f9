"""Arguments of the public functions: validation, models in any form, and name filters."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import onnx
import onnx_ir as ir

from qdqtune.config import NameFilters
from qdqtune.engines import _registry as registry
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import load_model, model_from_proto, save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._quantization_planner import unknown
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import ModelError, QdqtuneError, UsageError
from qdqtune.rules._placement_draft import Constraints

AnyModel = str | os.PathLike[str] | onnx.ModelProto | ir.Model
"""Types that functions accept as a model."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_EXPECTED = "a path, an onnx.ModelProto or an onnx_ir.Model"
_NODE = "node"


_SEE = "docs/reference/python.md says what goes in."


def checked_path(value: object, name: str) -> Path:
    """Return an argument as a path.

    Raises:
        UsageError: If it is not one; the message names the argument, its value and the expected
            type.
    """
    if not isinstance(value, str | os.PathLike):
        raise wrong_type(name, value, "a path")
    return Path(value)


def wrong_type(name: str, value: object, expected: str) -> UsageError:
    """Build the error about an argument.

    Args:
        name: Its name.
        value: Its value.
        expected: The expected type, in words.
    """
    shown = f"{value!r:.80}"
    is_plain = value is None or isinstance(value, int | float | str)
    what = shown if is_plain else f"a {type(value).__name__}: {shown}"
    return UsageError(f"{name} must be {expected}, not {what}.", _SEE)


@contextmanager
def as_file(model: AnyModel, argument: str = "model") -> Iterator[Path]:
    """Provide the model's file; a model in memory is written to a temporary file.

    Args:
        model: The model; it is not changed.
        argument: The name for messages if it has no path.

    Raises:
        UsageError: If it is not a model.
        ModelError: If it is in memory, and invalid.
    """
    if isinstance(model, str | os.PathLike) and isinstance(os.fspath(model), str):
        yield Path(model)
        return
    if not isinstance(model, onnx.ModelProto | ir.Model):
        raise wrong_type(argument, model, _EXPECTED)
    with TemporaryFolder() as folder:
        path = folder / "model.onnx"
        _write(model, path, argument)
        try:
            yield path
        except QdqtuneError as error:
            # The user doesn't know the temporary file, which no longer exists when the message is
            # read.
            error.what = error.what.replace(str(path), argument)
            error.hint = error.hint.replace(str(path), argument)
            error.args = (error.what,)
            raise


def on_file(
    function: Callable[Concatenate[Path, _P], _R],
) -> Callable[Concatenate[AnyModel, _P], _R]:
    """Decorate a function of a model's file to accept a model in any form: see `as_file`."""

    @functools.wraps(function)
    def taking_any(model: AnyModel, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with as_file(model) as path:
            return function(path, *args, **kwargs)

    return cast(Callable[Concatenate[AnyModel, _P], _R], taking_any)


@contextmanager
def output_file(
    model: AnyModel, output: str | os.PathLike[str] | None, suffix: str = ""
) -> Iterator[Path]:
    """Provide the output file; a temporary one for a model in memory.

    Args:
        model: The model as given.
        output: The output file as given.
        suffix: Suffix of a file next to the model, if `model` is a path and no output is given.

    Raises:
        UsageError: If there is neither an output nor a suffix for a model given by its path.
    """
    if output is not None:
        yield checked_path(output, "output")
    elif isinstance(model, str | os.PathLike) and suffix:
        yield Path(model).with_suffix(suffix)
    elif isinstance(model, str | os.PathLike):
        raise UsageError(
            "No output file was given.",
            'A model that is given by its path needs one: output="OUT.onnx".',
        )
    else:
        with TemporaryFolder() as folder:
            yield folder / "model.onnx"


def name_of(model: AnyModel, argument: str = "model") -> str:
    """Return the model's name in records: its path, or the argument if it has none."""
    return os.fspath(model) if isinstance(model, str | os.PathLike) else argument


def in_form_of(given: AnyModel, written: Path) -> Any:
    """Return a written model in the form in which another was given."""
    if isinstance(given, onnx.ModelProto):
        return onnx.load(written)
    if isinstance(given, ir.Model):
        model = load_model(written)
        ir.external_data.load_to_model(model)
        return model
    return written


def _write(model: onnx.ModelProto | ir.Model, path: Path, argument: str) -> None:
    if isinstance(model, onnx.ModelProto):
        model = model_from_proto(model, argument)
    try:
        save_model(model, path)
    except (ir.serde.SerdeError, OSError, TypeError, ValueError) as error:
        raise ModelError(
            f"{argument} can't be written as an ONNX model: {error}",
            "See what `onnx_ir.save` says about it.",
        ) from error


def choose_dialect(
    engine: str, dialect: str | None, options: Mapping[str, str] | None = None
) -> tuple[str, Dialect]:
    """Return the engine that a model is for, and the dialect to write for it.

    Args:
        engine: An engine's name, which may end in a version, or ``auto``.
        dialect: A dialect by name, instead of the engine's own on this machine; ``auto`` then
            stays as it is.
        options: The engine's options, as far as they determine the dialect.

    Raises:
        UsageError: If there is no such engine or dialect.
        EngineError: If there is no engine here, or it has no known dialect.
    """
    name, version = registry.versioned(engine)
    if dialect is not None:
        return name, dialect_named(dialect)
    if name == registry.AUTO:
        name = registry.resolve(name)
    return name, native_dialect(name, version, options=options)


def constraints_of(filters: NameFilters, index: GraphIndex) -> Constraints:
    """Apply filters to a model.

    An expression must match a whole name. If an expression for nodes matches none that way, it
    selects the names that begin with a match.

    Raises:
        UsageError: If one is not a regular expression, or matches nothing.
    """
    never = _matching(_NODE, filters.nodes_to_exclude, index.node)
    never |= _of_types(index, filters.op_types_to_exclude)
    only = _matching(_NODE, filters.nodes_to_quantize, index.node)
    only |= _of_types(index, filters.op_types_to_quantize)
    asked = filters.nodes_to_quantize or filters.op_types_to_quantize
    return Constraints(frozenset(only) if asked else None, frozenset(never))


def _of_types(index: GraphIndex, expressions: Sequence[str]) -> set[str]:
    types = _matching("op type", expressions, {node.op_type for node in index.nodes})
    return {node.name or "" for node in index.nodes if node.op_type in types}


def _matching(kind: str, expressions: Sequence[str], names: Iterable[str]) -> set[str]:
    known = sorted(names)
    found: set[str] = set()
    for text in expressions:
        if text in known:  # an exact name, even if it contains special characters
            found.add(text)
            continue
        try:
            expression = re.compile(text)
        except re.error as error:
            raise UsageError(
                f"{text!r} is not a regular expression: {error}.",
                "Put a backslash before characters that stand for themselves, such as ( or +.",
            ) from None
        matching = {name for name in known if expression.fullmatch(name)}
        if not matching and kind == _NODE:
            matching = {name for name in known if expression.match(name)}
        if not matching:
            raise unknown(kind, text, known)
        found |= matching
    return found
