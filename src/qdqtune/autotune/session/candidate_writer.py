"""Candidates as whole models: in memory, or in a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.autotune.config import Config
from qdqtune.autotune.errors import AutotunerError
from qdqtune.autotune.session.tuned_model import TunedModel
from qdqtune.graph.files import EXTERNAL, check_targets, save_model, write_bytes
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.inline_weights import external_bytes, inlined
from qdqtune.graph.onnx_checks import inconsistency
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.existing_scales import tells_range
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.read_result import ReadEncoding
from qdqtune.records.placement import Edge, Placement
from qdqtune.records.ranges import Ranges

Transform = Callable[[onnx.ModelProto], onnx.ModelProto]

_DTYPES = {
    "int8": ir.DataType.INT8,
    "uint8": ir.DataType.UINT8,
    "fp8": ir.DataType.FLOAT8E4M3FN,
}
# One protobuf message can hold 2 GiB; nodes and names need room, too.
_MOST_BYTES = (1 << 31) - (1 << 26)


class CandidateWriter:
    """Writes placements of one model; what they share is prepared once.

    Args:
        model: The model.
        dialect: How Q/DQ is written.
        config: Quant type, and the scale of activations of which nothing better is known.
        ranges: Ranges of activations, where they are known.
    """

    def __init__(
        self, model: TunedModel, dialect: Dialect, config: Config, ranges: Ranges | None = None
    ) -> None:
        self._source = model.path
        self._base = model.prepared
        known = ranges or Ranges()
        given = {**_defaults(self._base.index, config), **model.given}
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
        """Make a model, and write it if a path is given.

        Args:
            edges: Every edge that sees a quantized value.
            output_path: Where to write; what is there is replaced.
            transform: Applied to the model before it is written.

        Returns:
            The serialized model, weights inside. One over 2 GB can't be that: then it is the
            content of the file, whose weights lie beside it.

        Raises:
            AutotunerError: If the model is too large to be handed over without a file, or the
                transform returned no valid model.
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
        """Make sure that a model can be written, and should be."""
        check_targets(output_path, None, self._source, force=True)
        fault = inconsistency(proto)
        if fault:
            raise AutotunerError(
                f"{output_path} was not written, since it would not be a valid model: {fault}",
                "Check the model that was given: onnx.checker.check_model(model, full_check=True).",
            )


def _defaults(index: GraphIndex, config: Config) -> Mapping[str, ReadEncoding]:
    """The same encoding for every activation, in its own float type."""
    dtype = _DTYPES[config.default_quant_type]
    zero_point = np.array(config.default_q_zero_point).astype(dtype.numpy())
    by_float: dict[ir.DataType, ReadEncoding] = {}
    found = {}
    for tensor in index.value:
        kind = index.dtype(tensor)
        if kind is None or not index.is_float(tensor) or index.is_constant(tensor):
            continue
        if kind not in by_float:
            limits = ml_dtypes.finfo(kind.numpy())  # type: ignore[no-untyped-call]
            least, most = float(limits.smallest_normal), float(limits.max)
            scale = np.array(min(max(config.default_q_scale, least), most), np.float32)
            by_float[kind] = ReadEncoding(dtype, scale, zero_point, 1)
        found[tensor] = by_float[kind]
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
