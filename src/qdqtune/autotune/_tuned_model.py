"""The model that an autotuner works on, and its candidates as whole models."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.engines import _registry as registry
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import (
    EXTERNAL,
    check_targets,
    load_model,
    model_from_proto,
    save_model,
    write_bytes,
)
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._nonnegative import nonnegative_tensors
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._prepared_model import PreparedModel, external_bytes, inlined
from qdqtune.graph._shapes import at_shapes
from qdqtune.graph._validity import inconsistency
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._encoding import ReadEncoding, tells_range
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._preprocess import make_float
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import AutotunerError, EngineError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import Ranges
from qdqtune.search._config import ZERO_POINTS, Config

_log = logging.getLogger(__name__)

AnyModel = onnx.ModelProto | ir.Model | GraphIndex | str | os.PathLike[str]

# Key of the model's original: its weights may be in a folder that is removed with that object.
_COPIED_FROM = "qdqtune.copied_from"

_OLDEST_OPSET = 13  # Q/DQ per channel, which every dialect needs


def target_dialect(asked: Dialect | str | None, quant_type: str) -> Dialect:
    """Return the requested dialect, or that of the engine on this machine.

    Args:
        asked: A dialect, its name, or None. If the engine's own dialect lacks the quant type, one
            that has it is used.
        quant_type: The quant type that it must support.

    Raises:
        AutotunerError: If there is no such dialect, or it lacks the quant type.
    """
    if asked is None:
        native = _native()
        others = map(native_dialect, (registry.GUIDES_MODULE, registry.REFERENCE))
        return next((each for each in (native, *others) if quant_type in each.formats), native)
    try:
        found = dialect_named(asked) if isinstance(asked, str) else asked
        found.format_of(quant_type)
    except UsageError as error:
        raise AutotunerError(error.what, error.hint) from None
    return found


def _native() -> Dialect:
    try:
        return native_dialect(registry.resolve(registry.AUTO))
    except EngineError:
        return native_dialect(registry.GUIDES_MODULE)


class TunedModel:
    """A model that is ready to be quantized.

    Args:
        model: The user's model; it is not changed.
        input_shapes: Shapes of inputs whose dims the model leaves open. They distinguish patterns;
            exported models keep their open dims.

    Attributes:
        path: The file that it came from, if any.
        proto: The proto that was passed, if it was one.
        index: The graph.
        given: Encodings of tensors that it quantizes.

    Raises:
        TypeError: If it is not a model.
        QdqtuneError: If it can't be read or processed.
    """

    def __init__(
        self, model: AnyModel, input_shapes: Mapping[str, Sequence[int | None]] | None = None
    ) -> None:
        self.path = Path(model) if isinstance(model, str | os.PathLike) else None
        self.proto = model if isinstance(model, onnx.ModelProto) else None
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
            Whether that changed the graph; there is a new index then.

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
        """The fingerprint of the model."""
        if not self._fingerprint:
            self._fingerprint = fingerprint(self._model)
        return self._fingerprint

    @property
    def prepared(self) -> PreparedModel:
        """The model, ready for writing variants; its weights move into a file."""
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


Transform = Callable[[onnx.ModelProto], onnx.ModelProto]

_DTYPES = {
    "int8": ir.DataType.INT8,
    "uint8": ir.DataType.UINT8,
    "fp8": ir.DataType.FLOAT8E4M3FN,
}
# A protobuf message can hold 2 GiB; nodes and names need space, too.
_MOST_BYTES = (1 << 31) - (1 << 26)


class CandidateWriter:
    """Writes placements of one model; their common parts are prepared once.

    Args:
        model: The model.
        dialect: The dialect of Q/DQ.
        config: Quant type, and the default scale and zero point of activations.
        ranges: Ranges of activations, where they are known.
    """

    def __init__(
        self, model: TunedModel, dialect: Dialect, config: Config, ranges: Ranges | None = None
    ) -> None:
        self._source = model.path
        self._base = model.prepared
        known = ranges or Ranges()
        given = {**_defaults(self._base.index, dialect, config), **model.given}
        for tensor in known.by_tensor:
            if not (tensor in model.given and tells_range(model.given[tensor])):
                given.pop(tensor, None)
        self._inserter = Inserter(self._base, dialect, config.default_quant_type, known, given)

    def export(
        self,
        edges: frozenset[Edge],
        output_path: str | os.PathLike[str] | None = None,
        transform: Transform | None = None,
    ) -> bytes:
        """Create a model, and write it if a path is given.

        Args:
            edges: Every edge that sees a quantized value.
            output_path: Where to write; an existing file is replaced.
            transform: Applied to the model before it is written.

        Returns:
            The serialized model with its weights. Above 2 GB, it is the content of the file, whose
            weights are in a file next to it.

        Raises:
            AutotunerError: If the model is too large without an output file, or the transform
                returned an invalid model.
            OutputError: If the file can't be written.
        """
        placement = Placement(edges)
        variant = self._inserter.serialized(placement) if edges else self._base.whole()
        if external_bytes(variant) > _MOST_BYTES:
            return self._export_large(variant, output_path, transform)
        content = inlined(variant, self._base.store.folder)
        if transform is not None:
            content = _transformed(content, transform)
        if output_path is not None:
            self._check(onnx.ModelProto.FromString(content), output_path)
            if self._base.index.model.meta.get(EXTERNAL):
                model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(content))
                model.meta[EXTERNAL] = True
                save_model(model, output_path, force=True)
            else:
                write_bytes(output_path, content, force=True)
        return content

    def _export_large(
        self, variant: bytes, output_path: str | os.PathLike[str] | None, transform: object
    ) -> bytes:
        if output_path is None or transform is not None:
            raise AutotunerError(
                "The model is larger than 2 GB, which no ONNX file or message can be.",
                "Give an output_path, and no model_transform: weights are written beside it.",
            )
        self._check(onnx.ModelProto.FromString(variant), output_path)
        save_model(self._base.load(variant), output_path, force=True)
        return Path(output_path).read_bytes()

    def _check(self, proto: onnx.ModelProto, output_path: str | os.PathLike[str]) -> None:
        """Make sure that a model is valid and can be written."""
        check_targets(output_path, None, self._source, force=True)
        fault = inconsistency(proto)
        if fault:
            raise AutotunerError(
                f"{output_path} was not written, since it would not be a valid model: {fault}",
                "Check the model that was given: onnx.checker.check_model(model, full_check=True).",
            )


def _defaults(index: GraphIndex, dialect: Dialect, config: Config) -> Mapping[str, ReadEncoding]:
    """Return an encoding for every activation, in its own float type.

    All have the scale and the zero point of the settings. If the latter is 0, and the dialect has
    ranges that are not symmetric, those of tensors that can't be negative begin at 0, as calibrated
    ones do: engines compute a Relu with the quantized Conv before it only then, and latencies would
    mislead the search.
    """
    dtype = _DTYPES[config.default_quant_type]
    is_symmetric = dialect.format_of(config.default_quant_type).activation.symmetric
    is_uniform = is_symmetric or config.default_q_zero_point != 0
    nonnegative = frozenset() if is_uniform else nonnegative_tensors(index)
    lowest = ZERO_POINTS[config.default_quant_type][0]
    by_float: dict[tuple[ir.DataType, int], ReadEncoding] = {}
    found = {}
    for tensor in index.value:
        kind = index.dtype(tensor)
        if kind is None or not index.is_float(tensor) or index.is_constant(tensor):
            continue
        zero_point = lowest if tensor in nonnegative else config.default_q_zero_point
        key = (kind, zero_point)
        if key not in by_float:
            limits = ml_dtypes.finfo(kind.numpy())  # type: ignore[no-untyped-call]
            least, most = float(limits.smallest_normal), float(limits.max)
            scale = np.array(min(max(config.default_q_scale, least), most), np.float32)
            stored = np.array(zero_point).astype(dtype.numpy())
            by_float[key] = ReadEncoding(dtype, scale, stored, 1)
        found[tensor] = by_float[key]
    return found


def _transformed(content: bytes, transform: Transform) -> bytes:
    proto = transform(onnx.ModelProto.FromString(content))
    if not isinstance(proto, onnx.ModelProto):
        raise AutotunerError(
            f"model_transform returned {type(proto).__name__}.",
            "It takes an onnx.ModelProto and returns one.",
        )
    changed: bytes = proto.SerializeToString()
    return changed
