"""The model that a workflow starts from: float, or quantized with its Q/DQ removed."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph._files import load_model
from qdqtune.graph._folding import fold, make_ready
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import HALF_TYPES, is_op
from qdqtune.graph._optimizing import optimize_graph
from qdqtune.graph._precision import convert_precision
from qdqtune.qdq._encoding import ReadEncoding
from qdqtune.qdq._preprocess import Preparation, has_qdq, make_float
from qdqtune.qdq._read_back import ReadResult
from qdqtune.records._precision import Precision
from qdqtune.records._ranges import CalibrationSource, Ranges

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """A model as the workflows use it.

    Attributes:
        path: The file.
        model: The float model, folded unless disabled: the file's own, or the one inside a Q/DQ
            file.
        reading: The Q/DQ read from the file; None if it is a float model.
        labels: What qdqtune wrote into the file's metadata when it quantized it.
        has_bfloat16: Whether the file has bfloat16, which CPUs can't run.
        kept_scales: Encodings of another file that are kept for it, by tensor.
        converted_from: The half-precision type of the file, if the model was converted to float32
            because there are no integer kernels for that type; inputs and outputs keep it.
    """

    path: Path
    model: ir.Model
    reading: ReadResult | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    has_bfloat16: bool = False
    kept_scales: Mapping[str, ReadEncoding] = field(default_factory=dict)
    converted_from: str = ""

    @property
    def encodings(self) -> Mapping[str, ReadEncoding]:
        """The encodings that came with the model, by tensor."""
        own = self.reading.encodings if self.reading is not None else {}
        return {**own, **self.kept_scales}

    @property
    def scales_from(self) -> CalibrationSource:
        """The source of the file's scales, as far as the file records it."""
        label = self.labels.get("qdqtune.calibration", "")
        known = {source.value: source for source in CalibrationSource}
        return known.get(label, CalibrationSource.GIVEN)


def open_source(
    path: str | Path,
    opset: int = 0,
    precision: Precision | None = None,
    *,
    optimize: bool = True,
    float_types: Collection[ir.DataType] | None = None,
) -> Source:
    """Read a model, clean it up, and remove its Q/DQ if it has any.

    A Q/DQ model is only folded: everything between its pairs stays, so that its tensors are still
    those that its scales were made for.

    Args:
        path: A float or Q/DQ model.
        opset: The minimum opset.
        precision: The float type to compute the model in; None for its own.
        optimize: Whether to clean it up; otherwise nothing is computed, absorbed or removed.
        float_types: Types for which there are integer kernels: a model in another type is computed
            in float32, unless `precision` is set. None takes the model as it is.

    Raises:
        ModelError: If it can't be read, or is quantized in a way that can't be undone.
    """
    model = load_model(path)
    converted_from = ""
    if precision is None and float_types is not None:
        without = HALF_TYPES.difference(float_types)
        converted_from = next((each.name.lower() for each in types_in(model, without)), "")
        precision = Precision.FP32 if converted_from else None
    prepare: Preparation = make_ready
    if optimize:  # quantized parts must not be merged or moved
        prepare = fold if has_qdq(model) else optimize_graph
    opened = make_float(model, path, opset, precision, prepare=prepare)
    done = "folded, " if optimize else ""
    _logger.info("%s: %s%d nodes left", path, done, len(model.graph))
    return Source(
        Path(path),
        model,
        opened.reading,
        opened.labels,
        opened.has_bfloat16,
        converted_from=converted_from,
    )


def float32_twin(model: ir.Model) -> ir.Model:
    """Return the model, or its float32 form if it has half precision, which CPUs hardly support."""
    if not has_types(model, HALF_TYPES):
        return model
    twin = model.clone()
    convert_precision(twin, Precision.FP32)
    return twin


def has_types(model: ir.Model, dtypes: Collection[ir.DataType]) -> bool:
    """Whether a tensor of the main graph has one of these types."""
    return bool(types_in(model, dtypes))


def types_in(model: ir.Model, dtypes: Collection[ir.DataType]) -> list[ir.DataType]:
    """Return those of some types that tensors of the main graph have."""
    index = GraphIndex(model)
    there = {index.dtype(name) for name in index.value}
    return [dtype for dtype in sorted(dtypes) if dtype in there]


def ranges_behind_casts(ranges: Ranges, index: GraphIndex) -> Ranges:
    """Add the ranges on the other side of Casts, where only the type differs."""
    known = dict(ranges.by_tensor)
    ends = [
        (node.inputs[0].name or "", node.outputs[0].name or "")
        for node in index.nodes
        if is_op(node, "Cast") and node.inputs[0] is not None
    ]
    for source, result in (*ends, *((result, source) for source, result in reversed(ends))):
        if source in known and index.is_float(result):
            known.setdefault(result, known[source])
    return Ranges(known, ranges.source, ranges.samples)
