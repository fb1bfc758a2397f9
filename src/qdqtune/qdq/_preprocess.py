"""Getting a model ready to be quantized: folded, at a sufficient opset, and float."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import MICROSOFT, QDQ_OPS, is_op, is_standard
from qdqtune.graph._opset import least_opset, raise_opset
from qdqtune.graph._precision import convert_precision
from qdqtune.qdq._dynamic import find_dynamic_ops
from qdqtune.qdq._read_back import ReadResult, strip
from qdqtune.records._errors import ModelError
from qdqtune.records._precision import Precision

# Standard ops, how Microsoft's begin, what that makes of a model, and what to do instead.
_REFUSED = (
    (
        frozenset({"QLinearConv", "QLinearMatMul"}),
        ("QLinear", "QGemm"),
        "in the QOperator format ({}), which has no Q/DQ nodes that could be moved.",
        ", or quantize that in the QDQ format (quant_format=QuantFormat.QDQ)",
    ),
    (
        frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"}),
        ("DynamicQuantize", "MatMulIntegerToFloat", "QAttention"),
        "dynamically ({}) in a form that can't be taken apart.",
        "",
    ),
)

_logger = logging.getLogger(__name__)
Preparation = Callable[[ir.Model], object]
"""Changes a model in place."""


def refuse_integer_ops(model: ir.Model, path: str | Path) -> None:
    """Make sure that a model is float, or quantized with Q/DQ pairs and dynamic ops that we know.

    Raises:
        ModelError: If it has ops of the QOperator format or of other dynamic quantization.
    """
    known = {node for op in find_dynamic_ops(model.graph) for node in op.nodes}
    for standard, microsoft, how, instead in _REFUSED:
        found = Counter(
            node.op_type
            for node in model.graph
            if node not in known
            if (is_standard(node) and node.op_type in standard)
            or (node.domain == MICROSOFT and node.op_type.startswith(microsoft))
        )
        if found:
            ops = ", ".join(f"{count} {op_type}" for op_type, count in found.most_common(3))
            raise ModelError(
                f"{path} is quantized {how.format(ops)}",
                f"Start from the float model it was made from{instead}. `qdqtune bench` times the "
                "file as it is.",
            )


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
    """Whether there are Q or DQ nodes, or dynamic ones, in the main graph."""
    is_pair = any(is_op(node, *QDQ_OPS) for node in model.graph)
    return is_pair or any(find_dynamic_ops(model.graph))
