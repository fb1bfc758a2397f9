"""The model that a workflow starts from: float, or quantized already and taken apart."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph.files import load_model
from qdqtune.graph.folding import fold, make_ready
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import is_op
from qdqtune.graph.optimizing import optimize_graph
from qdqtune.graph.precision import convert_precision
from qdqtune.graph.precision_types import HALF_TYPES
from qdqtune.qdq.preprocess import Preparation, has_qdq, make_float
from qdqtune.qdq.read_result import ReadResult
from qdqtune.records.precision import Precision
from qdqtune.records.ranges import CalibrationSource, Ranges

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Source:
    """A model as workflows take it.

    Attributes:
        path: The file.
        model: The float model, folded unless that was not wanted: the file's own, or the one inside
            a Q/DQ file.
        reading: What was quantized in the file; None if it is a float model.
        labels: What qdqtune wrote into the file's metadata when it quantized it.
        has_bfloat16: Whether the file does, which CPUs can't run.
        converted_from: The half float type of the file, if the model was converted to float32 for
            want of integer kernels for that; its inputs and outputs still have it.
    """

    path: Path
    model: ir.Model
    reading: ReadResult | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    has_bfloat16: bool = False
    converted_from: str = ""

    @property
    def scales_from(self) -> CalibrationSource:
        """What the file's scales were taken from, as far as it says."""
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
    """Read a model, clean it up, and take out the Q/DQ that it may have.

    A Q/DQ model is only folded: what its pairs guard stays, so that its tensors are still those
    that its scales were learned for.

    Args:
        path: A float or Q/DQ model.
        opset: The least opset that is needed.
        precision: The float type that the model is to be computed in; None is its own.
        optimize: Whether to do so; otherwise nothing is computed, absorbed or removed.
        float_types: Those for which there are integer kernels: a model in another one is computed
            in float32, unless `precision` says something else. None takes the model as it is.

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
    if optimize:  # what is quantized already is not to be merged or moved
        prepare = fold if has_qdq(model) else optimize_graph
    opened = make_float(model, path, opset, precision, prepare=prepare)
    done = "folded, " if optimize else ""
    _logger.info("%s: %s%d nodes left", path, done, len(model.graph))
    return Source(
        Path(path), model, opened.reading, opened.labels, opened.has_bfloat16, converted_from
    )


def float32_twin(model: ir.Model) -> ir.Model:
    """The model itself, or its float32 form if it has half floats, which CPUs hardly run."""
    if not has_types(model, HALF_TYPES):
        return model
    twin = model.clone()
    convert_precision(twin, Precision.FP32)
    return twin


def has_types(model: ir.Model, dtypes: Collection[ir.DataType]) -> bool:
    """Whether a tensor of the main graph is of one of these types."""
    return bool(types_in(model, dtypes))


def types_in(model: ir.Model, dtypes: Collection[ir.DataType]) -> list[ir.DataType]:
    """Those of some types that tensors of the main graph have."""
    index = GraphIndex(model)
    there = {index.dtype(name) for name in index.value}
    return [dtype for dtype in sorted(dtypes) if dtype in there]


def ranges_behind_casts(ranges: Ranges, index: GraphIndex) -> Ranges:
    """The ranges with those on the other side of Casts added: only the type differs there."""
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
