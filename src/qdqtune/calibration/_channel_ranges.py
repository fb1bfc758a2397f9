"""The smallest and largest value in each channel of tensors, over samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
from onnx.helper import make_tensor_value_info

from qdqtune.calibration._instrumentation import PackedOutput, running, variant
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._reference_engine import advice_on, opening_options
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._encoding import Array
from qdqtune.records._errors import EngineError

_OUTPUT = "qdqtune_channels"
_REDUCTIONS = ("ReduceMin", "ReduceMax")


def channel_ranges(
    base: PreparedModel, worker: Worker, samples: Iterable[Feeds], channels: Mapping[str, int]
) -> dict[str, tuple[Array, Array]]:
    """Return the smallest and largest value in each channel of tensors.

    Args:
        base: The model.
        worker: A worker of the reference engine.
        samples: Input sets, read one at a time.
        channels: The size of the last axis of each tensor, which has its channels.

    Returns:
        Lows and highs by tensor; tensors whose values are not all finite are missing.

    Raises:
        EngineError: If the model does not run.
    """
    reducing = _Channels(base, channels)
    ends = np.cumsum([len(_REDUCTIONS) * channels[name] for name in reducing.order])[:-1]
    found: dict[str, tuple[Array, Array]] = {}
    output = make_tensor_value_info(_OUTPUT, onnx.TensorProto.FLOAT, [None])
    model = variant(base, reducing.nodes, [output], reducing.constants)
    try:
        with running(base, worker, model, opening_options(len(base.nodes))) as run:
            for feeds in samples:
                parts = np.split(run(feeds)[_OUTPUT], ends)
                for name, part in zip(reducing.order, parts, strict=True):
                    low, high = np.split(part, len(_REDUCTIONS))
                    lows, highs = found.get(name, (low, high))
                    found[name] = (np.minimum(low, lows), np.maximum(high, highs))
    except WorkerFailure as failure:
        advice = advice_on(failure, base.index.model, worker.engine, "Its inputs stay as they are.")
        raise EngineError(f"The channels of inputs can't be observed: {failure}", advice) from None
    return {name: pair for name, pair in found.items() if np.isfinite(pair).all()}


class _Channels(PackedOutput):
    """Reduces tensors to the smallest and largest value of each channel."""

    def __init__(self, base: PreparedModel, channels: Mapping[str, int]) -> None:
        super().__init__(_OUTPUT)
        self._index, self._channels = base.index, channels
        self.watch(base, channels)

    def reduce(self, tensor: str, label: str) -> list[str]:
        """Return the smallest, then the largest value of each channel."""
        real = self.real(tensor, self._index.dtype(tensor), label)
        rows = self.constant([-1, self._channels[tensor]])
        rows = self.add("Reshape", [real, rows], f"{label}_rows")
        opset = self._index.model.opset_imports.get("", 0)
        return [
            self.reduced(op_type, rows, 0, f"{label}_{op_type}", opset=opset)
            for op_type in _REDUCTIONS
        ]
