"""The model that an autotuner works on: its own copy, float, folded, at a sufficient opset."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.autotune.errors import AutotunerError
from qdqtune.graph.files import load_model, model_from_proto
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.folding import fold
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import resolve_shapes
from qdqtune.graph.naming import name_nodes
from qdqtune.graph.opset import raise_opset
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.graph.shapes import at_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.qdq.preprocess import make_float
from qdqtune.qdq.read_result import ReadEncoding
from qdqtune.records.inputs import InputRequest

_log = logging.getLogger(__name__)

AnyModel = onnx.ModelProto | ir.Model | GraphIndex | str | os.PathLike[str]

# What a model was copied from: its weights may lie in a folder that goes when that does.
_COPIED_FROM = "qdqtune.copied_from"

_OLDEST_OPSET = 13  # Q/DQ per channel, which every dialect needs


class TunedModel:
    """A model that is ready to be quantized.

    Args:
        model: What the user has; it is not changed.
        input_shapes: Shapes of inputs whose dims the model leaves open. They are used to tell
            patterns apart; what is exported stays as open as the model is.

    Attributes:
        path: The file that it came from, if it did.
        index: The graph.
        given: Encodings of tensors that were quantized in it.

    Raises:
        TypeError: If it is no model.
        QdqtuneError: If it can't be read or worked with.
    """

    def __init__(
        self, model: AnyModel, input_shapes: Mapping[str, Sequence[int | None]] | None = None
    ) -> None:
        self.path = Path(model) if isinstance(model, str | os.PathLike) else None
        self._input_shapes = {name: tuple(dims) for name, dims in (input_shapes or {}).items()}
        self._model = _own_copy(model)
        opened = make_float(self._model, self.path or "The model", _OLDEST_OPSET)
        reading = opened.reading
        self.given: Mapping[str, ReadEncoding] = reading.encodings if reading else {}
        if reading is not None:
            _log.warning(
                "the model was quantized: its Q/DQ were taken out, so that what is tuned is the "
                "float model; the scales of %d tensors are used again",
                len(self.given),
            )
        self._shapes = contextlib.ExitStack()
        self._fingerprint = ""
        self._folder = TemporaryFolder()
        weakref.finalize(self._model, self._folder.cleanup)
        self._prepared: PreparedModel | None = None
        self.index = self._indexed()

    def raise_to(self, opset: int) -> bool:
        """Raise the model to an opset, if it is older.

        Returns:
            Whether that made another graph of it; the index is a new one then.

        Raises:
            ModelError: If it can't be converted.
        """
        if self._model.opset_imports.get("", 0) >= opset:
            return False
        before = _outline(self.index)
        self._shapes.close()
        if raise_opset(self._model, opset):
            fold(self._model)
        self._fingerprint = ""
        self._prepared = None
        self.index = self._indexed()
        return _outline(self.index) != before

    @property
    def fingerprint(self) -> str:
        """What tells the model from others."""
        if not self._fingerprint:
            self._fingerprint = fingerprint(self._model)
        return self._fingerprint

    @property
    def prepared(self) -> PreparedModel:
        """The model, ready for variants of it to be written; its weights move into a file."""
        if self._prepared is None:
            folder = Path(tempfile.mkdtemp(dir=self._folder.path))
            self._prepared = PreparedModel(self._model, folder)
        return self._prepared

    def _indexed(self) -> GraphIndex:
        if self._input_shapes:
            shapes = resolve_shapes(self._model, InputRequest(shapes=self._input_shapes))
            self._shapes.enter_context(at_shapes(self._model, shapes))
        return GraphIndex(self._model)


def _own_copy(model: AnyModel) -> ir.Model:
    if isinstance(model, onnx.ModelProto):
        return model_from_proto(model)
    if isinstance(model, str | os.PathLike):
        return load_model(model)
    if isinstance(model, GraphIndex):
        return _own_copy(model.model)
    if not isinstance(model, ir.Model):
        raise TypeError(
            f"A model is an onnx.ModelProto, an onnx_ir.Model, an autotuner's graph or a path, not "
            f"{type(model).__name__}."
        )
    if not len(model.graph):
        raise AutotunerError("The model has an empty graph.", "Check how it was exported.")
    copy = model.clone()
    copy.meta[_COPIED_FROM] = model
    name_nodes(copy)
    return copy


def _outline(index: GraphIndex) -> list[tuple[str | None, str]]:
    return [(node.name, node.op_type) for node in index.nodes]
