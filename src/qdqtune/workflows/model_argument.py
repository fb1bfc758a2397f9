"""Accept models as a path, a proto, or an `onnx_ir.Model`.

All code below works on files. A model in memory is written to a temporary folder for the duration
of the call, with large weights beside it; the user's object is only read.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import onnx
import onnx_ir as ir

from qdqtune.graph.files import load_model, model_from_proto, save_model
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.errors import ModelError, QdqtuneError, UsageError
from qdqtune.workflows.arguments import wrong_type

AnyModel = str | os.PathLike[str] | onnx.ModelProto | ir.Model
"""Types that functions accept as a model."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_EXPECTED = "a path, an onnx.ModelProto or an onnx_ir.Model"


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
    _check_type(model, argument)
    if isinstance(model, str | os.PathLike):
        yield Path(model)
        return
    with TemporaryFolder() as folder:
        path = folder / "model.onnx"
        _write(model, path, argument)
        try:
            yield path
        except QdqtuneError as error:
            # The user doesn't know the temporary file, and it is gone when the message is read.
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
def output_file(model: AnyModel, output: str | os.PathLike[str] | None) -> Iterator[Path]:
    """Provide the output file; a temporary one for a model in memory.

    Raises:
        UsageError: If `model` is a path, and no output is given.
    """
    if output is not None:
        yield Path(output)
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


def _check_type(model: object, argument: str) -> None:
    is_path = isinstance(model, str) or (
        isinstance(model, os.PathLike) and isinstance(os.fspath(model), str)
    )
    if not is_path and not isinstance(model, onnx.ModelProto | ir.Model):
        raise wrong_type(argument, model, _EXPECTED)
