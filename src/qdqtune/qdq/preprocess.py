"""Getting a model ready to be quantized: folded, at a sufficient opset, without Q/DQ of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph.folding import fold
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE, is_op
from qdqtune.graph.opset import least_opset, raise_opset
from qdqtune.graph.precision import convert_precision
from qdqtune.qdq.integer_ops import refuse_integer_ops
from qdqtune.qdq.read_back import strip
from qdqtune.qdq.read_result import ReadResult
from qdqtune.records.precision import Precision

_logger = logging.getLogger(__name__)

Preparation = Callable[[ir.Model], object]
"""Changes a model in place."""


@dataclass(frozen=True)
class PreprocessedModel:
    """What was found in a model that was made float.

    Attributes:
        reading: What was quantized in it; None if it was float already.
        labels: What qdqtune wrote into its metadata when it quantized it.
        has_bfloat16: Whether it has tensors of that type, which CPUs can't run.
    """

    reading: ReadResult | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    has_bfloat16: bool = False


def make_float(
    model: ir.Model,
    name: str | Path,
    opset: int = 0,
    precision: Precision | None = None,
    *,
    prepare: Preparation = fold,
) -> PreprocessedModel:
    """Get a model ready, in place, and take out the Q/DQ that it may have.

    What its pairs guard stays while it is folded, so that its tensors are still those that its
    scales were learned for.

    Args:
        model: A float or Q/DQ model; every node has a name of its own.
        name: What to call it in an error message.
        opset: The least opset that is needed.
        precision: The float type that the model is to be computed in; None is its own.
        prepare: What is done to the graph before it is looked at.

    Raises:
        ModelError: If it is quantized in a way that can't be undone.
    """
    refuse_integer_ops(model, name)
    labels = {
        key: value for key, value in model.metadata_props.items() if key.startswith("qdqtune.")
    }
    prepare(model)
    index = GraphIndex(model)
    has_bfloat16 = any(index.dtype(tensor) == ir.DataType.BFLOAT16 for tensor in index.value)
    if precision is not None and convert_precision(model, precision).modified:
        prepare(model)
    if raise_opset(model, max(opset, least_opset(GraphIndex(model)))):
        prepare(model)
    reading = None
    if has_qdq(model):
        reading = strip(model)
        if reading.left:
            _logger.warning(
                "%d Q and DQ nodes belong to no pair with constant scales: they stay as they are",
                reading.left,
            )
    return PreprocessedModel(reading, labels, has_bfloat16)


def has_qdq(model: ir.Model) -> bool:
    """Whether there are Q or DQ nodes in the main graph."""
    return any(is_op(node, QUANTIZE, DEQUANTIZE) for node in model.graph)
