"""Read which tensors a Q/DQ model quantizes."""

from __future__ import annotations

import os

import onnx

from qdqtune.graph._files import load_model, model_from_proto, without_graphsurgeon
from qdqtune.qdq._read_back import read

__all__ = ["get_quantized_tensors"]


def get_quantized_tensors(model: onnx.ModelProto | str | os.PathLike[str]) -> set[str]:
    """Return the names of the quantized tensors, as they are in the float model inside.

    `QDQAutotuner.import_insertion_points` takes these names: activations by the tensor before the
    Q, weights by their names in the unquantized model.

    Args:
        model: A Q/DQ model, or the path to one; also an onnx_graphsurgeon graph.

    Raises:
        ModelError: If the model can't be read.
    """
    model = without_graphsurgeon(model)
    loaded = model_from_proto(model) if isinstance(model, onnx.ModelProto) else load_model(model)
    return set(read(loaded).placement.tensors)
