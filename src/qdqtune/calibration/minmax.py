"""Ranges by running the model: the smallest and largest value of every float tensor."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor, make_tensor_value_info

from qdqtune.calibration.inputs import Feeds
from qdqtune.engines.isolated import OpenModel, Worker, WorkerFailure
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared import PreparedModel
from qdqtune.records.errors import EngineError, ModelError
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, Ranges

Progress = Callable[[int, "int | None"], None]
"""Takes how many samples are done, and how many there are if that is known."""

_OUTPUT = "qdqtune_extremes"

# The engine's minimum and maximum pass NaN over unless it comes first. A sum of absolute values is
# NaN if and only if one of them is, also where it overflows; it makes runs 6 to 13 % longer.
_REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceL1")

_logger = logging.getLogger(__name__)


def collect_ranges(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    source: CalibrationSource,
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """Run the model on each sample and keep the extremes, in constant memory.

    The minimum and maximum are taken inside the engine: what comes back per sample are three
    numbers per tensor, not the tensors.

    Args:
        base: The model.
        worker: An ONNX Runtime worker.
        samples: Input sets, read one at a time.
        source: Where the samples come from.
        placement: Watch only what it quantizes; None watches every float tensor.
        progress: Told after every sample.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    watched = watched_tensors(base.index)
    if placement is not None:
        quantized = {edge.tensor for edge in base.index.effective(placement)}
        watched = [name for name in watched if name in quantized]
    if not watched:
        return Ranges({}, source)
    extremes = _Extremes(watched)
    total = operator.length_hint(samples) or None
    path = base.write(_with_extremes(base, watched).SerializeToString(), "calibration")
    opened: OpenModel | None = None
    try:
        # With the engine's optimizations: what is watched has a reader, so it is not fused away.
        # Seen on one core, everything watched, against as written (and the bare model): ResNet-18
        # 32 ms against 43 (28), MobileNetV2 19 against 27 (8), ViT 133 against 137 (93).
        opened = worker.open(path)
        for feeds in samples:
            extremes.add(worker.run(opened, feeds)[_OUTPUT])
            if progress is not None:
                progress(extremes.samples, total)
        worker.release(opened)
    except WorkerFailure as failure:
        at = "" if opened is None else f" on sample {extremes.samples}"
        raise EngineError(
            f"The float model does not run{at}, so it can't be calibrated: {failure}",
            "Feed it with what it gets in use; of open dims, not all sizes may be possible.",
        ) from None
    finally:
        path.unlink(missing_ok=True)
    if not extremes.samples:
        raise ModelError("There is no calibration data.", "Give at least one sample.")
    return Ranges(extremes.ranges(), source, extremes.samples)


def watched_tensors(index: GraphIndex) -> list[str]:
    """Every float tensor of the main graph that is not a constant and not known to be empty."""
    return [
        name
        for name, value in index.value.items()
        if index.is_float(name)
        and not value.is_initializer()
        and 0 not in (index.shape(name) or ())
        and index.readers(name)
    ]


class _Extremes:
    """Smallest and largest value per tensor, and the first sample where one has none."""

    def __init__(self, tensors: Sequence[str]) -> None:
        self.samples = 0
        self._tensors = tensors
        self._lows = np.full(len(tensors), np.inf)
        self._highs = np.full(len(tensors), -np.inf)
        self._strange: dict[str, int] = {}

    def add(self, reductions: npt.NDArray[Any]) -> None:
        lows, highs, sums = reductions.reshape(len(self._tensors), len(_REDUCTIONS)).T
        # A tensor without elements has an infinite minimum, too: above its maximum.
        infinite = (np.isinf(lows) | np.isinf(highs)) & (lows <= highs)
        for name, strange in zip(self._tensors, infinite | np.isnan(sums), strict=True):
            if strange:
                self._strange.setdefault(name, self.samples)
        self._lows = np.fmin(self._lows, lows)
        self._highs = np.fmax(self._highs, highs)
        self.samples += 1

    def ranges(self) -> dict[str, tuple[float, float]]:
        for name, sample in self._strange.items():
            _logger.warning(
                "%s takes infinite or undefined values, first in sample %d: it has no range",
                name, sample,
            )  # fmt: skip
        pairs = zip(self._tensors, self._lows.tolist(), self._highs.tolist(), strict=True)
        return {
            name: (low, high)
            for name, low, high in pairs
            if low <= high and name not in self._strange
        }


def _with_extremes(base: PreparedModel, tensors: Sequence[str]) -> onnx.ModelProto:
    """The base with one output: `_REDUCTIONS` of each tensor, in order."""
    proto: onnx.ModelProto = onnx.ModelProto.FromString(base.whole())
    graph = proto.graph
    del graph.output[:]
    one = f"{_OUTPUT}_one"
    graph.initializer.append(make_tensor(one, onnx.TensorProto.INT64, [1], [1]))
    # Backwards: ONNX Runtime computes the inputs of a node from the last to the first one added.
    # So a tensor is reduced as soon as it is there, and its memory used again. Forwards, every
    # tensor would live to the end: ViT took 600 MB instead of 180, and half as long again.
    for position, tensor in reversed(list(enumerate(tensors))):
        name = f"{_OUTPUT}_{position}"
        source = tensor
        if base.index.dtype(tensor) != ir.DataType.FLOAT:
            source = f"{name}_cast"
            graph.node.append(make_node("Cast", [tensor], [source], to=onnx.TensorProto.FLOAT))
        for op_type in _REDUCTIONS:
            reduced, scalar = f"{name}_{op_type}", f"{name}_{op_type}_scalar"
            # Of no elements: inf, -inf and 0, which change nothing.
            graph.node.append(make_node(op_type, [source], [reduced], keepdims=0))
            graph.node.append(make_node("Reshape", [reduced, one], [scalar]))
    scalars = [
        f"{_OUTPUT}_{position}_{op_type}_scalar"
        for position in range(len(tensors))
        for op_type in _REDUCTIONS
    ]
    graph.node.append(make_node("Concat", scalars, [_OUTPUT], axis=0))
    shape = [len(scalars)]
    graph.output.append(make_tensor_value_info(_OUTPUT, onnx.TensorProto.FLOAT, shape))
    return proto
