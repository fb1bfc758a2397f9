"""What a model computes, and which shapes it computes, on the host."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

Shape = tuple[int, ...]
_SMALL_BYTES = 4096


class Computation:
    """A model that can be run.

    Args:
        model: The model, with all its weights.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._session = None
        self._skeleton: onnx.ModelProto | None = None
        self._known: dict[tuple[object, ...], dict[str, Shape]] = {}

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name; every op is computed as it is written."""
        import onnxruntime as ort  # late: a process that only builds does without

        if self._session is None:
            options = ort.SessionOptions()
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 4
            self._session = ort.InferenceSession(
                self._model, options, providers=["CPUExecutionProvider"]
            )
        names = [value.name for value in self._session.get_outputs()]
        return dict(zip(names, self._session.run(None, dict(feeds)), strict=True))

    def shapes(
        self, shapes: Mapping[str, Shape], values: Mapping[str, np.ndarray]
    ) -> dict[str, Shape]:
        """The shapes of outputs, -1 where only a run tells.

        Args:
            shapes: Of the inputs.
            values: Of inputs that decide shapes.
        """
        key = (*shapes.items(), *((name, values[name].tobytes()) for name in values))
        if key not in self._known:
            self._known[key] = self._infer(shapes, values)
        return self._known[key]

    def _infer(
        self, shapes: Mapping[str, Shape], values: Mapping[str, np.ndarray]
    ) -> dict[str, Shape]:
        if self._skeleton is None:
            self._skeleton = _without_weights(self._model)
        model = onnx.ModelProto()
        model.CopyFrom(self._skeleton)
        graph = model.graph
        for value in list(graph.input):
            if value.name in values:  # then it is as good as a constant
                graph.initializer.append(numpy_helper.from_array(values[value.name], value.name))
                graph.input.remove(value)
            for dim, size in zip(
                value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False
            ):
                dim.dim_value = size
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        return {
            value.name: tuple(
                dim.dim_value if dim.HasField("dim_value") else -1
                for dim in value.type.tensor_type.shape.dim
            )
            for value in inferred.graph.output
        }


def _without_weights(content: bytes) -> onnx.ModelProto:
    model = onnx.load_from_string(content)
    for tensor in model.graph.initializer:
        if tensor.ByteSize() > _SMALL_BYTES:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(value)
    small = [each for each in model.graph.initializer if each.ByteSize() <= _SMALL_BYTES]
    del model.graph.initializer[:]
    model.graph.initializer.extend(small)
    del model.graph.value_info[:]
    for value in model.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            if not dim.HasField("dim_value"):
                dim.Clear()
    return model
