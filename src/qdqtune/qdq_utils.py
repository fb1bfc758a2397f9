"""What is quantized in a Q/DQ model."""

from __future__ import annotations

import os

import onnx

from qdqtune.graph.files import load_model, model_from_proto
from qdqtune.qdq.read_back import read

__all__ = ["get_quantized_tensors"]


def get_quantized_tensors(model: onnx.ModelProto | str | os.PathLike[str]) -> set[str]:
    """Names of the tensors that are quantized, as the float model inside has them.

    They are what `QDQAutotuner.import_insertion_points` takes: the tensors before their Q, and
    weights by the names that they have without quantization.

    Args:
        model: A Q/DQ model, or the path of one.

    Raises:
        ModelError: If it can't be read.
    """
    loaded = model_from_proto(model) if isinstance(model, onnx.ModelProto) else load_model(model)
    return set(read(loaded).placement.tensors)
