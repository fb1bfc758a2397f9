"""Models as users hand them over: a path, a proto, or an `onnx_ir.Model`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune.graph.files import load_model, model_from_proto, save_model
from qdqtune.graph.temporary_files import TemporaryFolder

AnyModel = str | os.PathLike[str] | onnx.ModelProto | ir.Model
"""What functions take that only read a model."""


@contextmanager
def as_file(model: AnyModel) -> Iterator[Path]:
    """The model's file; one in memory is written to a file for a while."""
    if not isinstance(model, onnx.ModelProto | ir.Model):
        yield Path(model)
        return
    with TemporaryFolder() as folder:
        graph = model_from_proto(model) if isinstance(model, onnx.ModelProto) else model
        yield save_model(graph, folder / "model.onnx")


def in_form_of(given: AnyModel, written: Path) -> Any:
    """A model that was written, in the form in which another was given."""
    if isinstance(given, onnx.ModelProto):
        return onnx.load(written)
    if isinstance(given, ir.Model):
        model = load_model(written)
        ir.external_data.load_to_model(model)
        return model
    return written
