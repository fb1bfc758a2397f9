"""Raising a model to the opset that its quantized form needs."""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.version_converter import ConvertVersionPass

from qdqtune.graph.index import GraphIndex
from qdqtune.records.errors import ModelError

_HALF_SCALES = 19


def least_opset(index: GraphIndex) -> int:
    """The opset that Q/DQ on a model's own float types needs: half-precision scales came late."""
    half = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return _HALF_SCALES if any(index.dtype(name) in half for name in index.value) else 0


def raise_opset(model: ir.Model, least: int) -> bool:
    """Convert a model, in place, if its ONNX opset is older than `least`.

    Returns:
        Whether it was converted.

    Raises:
        ModelError: If the converter gives up on the model.
    """
    current = model.opset_imports.get("", 0)
    if current >= least:
        return False
    metadata = dict(model.metadata_props)
    try:
        ConvertVersionPass(least, fallback=True)(model)
    except Exception as error:
        raise ModelError(
            f"The model can't be raised from opset {current} to {least}: {error}",
            f"Export it with opset {least} or later.",
        ) from error
    if model.opset_imports.get("", 0) < least:
        raise ModelError(
            f"The model can't be raised from opset {current} to {least}.",
            f"Export it with opset {least} or later.",
        )
    model.metadata_props.update(metadata)
    return True
