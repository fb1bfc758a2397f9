"""Shapes and element types of intermediate tensors."""

from __future__ import annotations

import logging

import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

_logger = logging.getLogger(__name__)


def infer_shapes(model: ir.Model) -> bool:
    """Fill in what ONNX's shape inference can tell; weights are not touched or copied.

    Returns:
        Whether anything became known that was not.
    """
    result = ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    return bool(result.modified)
