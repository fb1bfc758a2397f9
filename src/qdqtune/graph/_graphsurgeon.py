"""Graphs of the package onnx_graphsurgeon, which scripts for TensorRT often hold."""

from __future__ import annotations

import sys
from typing import TypeVar, cast

_PACKAGE = "onnx_graphsurgeon"

T = TypeVar("T")


def without_graphsurgeon(model: T) -> T:
    """Export a graph of onnx_graphsurgeon as an `onnx.ModelProto`; return anything else as it is.

    Whoever has such a graph has imported that package: it is no dependency.
    """
    if type(model).__module__.partition(".")[0] != _PACKAGE:
        return model
    return cast("T", sys.modules[_PACKAGE].export_onnx(model))
