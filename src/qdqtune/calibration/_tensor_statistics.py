"""Statistics of a model's float tensors.

Collected by running it with reductions as extra outputs.
"""

from __future__ import annotations

import logging
import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.helper import make_tensor_value_info

from qdqtune.calibration._instrumentation import PackedOutput, running, variant
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._range_fitting import Histogram
from qdqtune.engines._reference_engine import AS_WRITTEN, advice_on, opening_options
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.records._errors import EngineError, ModelError
from qdqtune.records._placement import Placement

OUTPUT = "qdqtune_extremes"

# The engine's minimum and maximum pass NaN over unless it comes first. A sum of absolute values is
# NaN if and only if one of them is, also where it overflows; it makes runs 6 to 13 % longer.
REDUCTIONS = ("ReduceMin", "ReduceMax", "ReduceL1")

_ALL_VALUES = 1 << 20
_VALUES_PER_TENSOR = (256, 4096)
_END = np.iinfo(np.int64).max

Array = npt.NDArray[Any]

Progress = Callable[[int, "int | None"], None]
"""Takes how many samples are done, and how many there are if that is known."""
_logger = logging.getLogger(__name__)
_OTHER_INPUTS = "Feed it with what it gets in use; of open dims, not all sizes may be possible."


class _Statistics(PackedOutput):
    """Reduces tensors to `REDUCTIONS`, and to some of their values if wanted.

    Args:
        index: Of the base.
        count: About how many values of each tensor are wanted.
    """

    def __init__(self, index: GraphIndex, count: int) -> None:
        super().__init__(OUTPUT)
        self._index = index
        self._count = count

    def reduce(self, tensor: str, label: str) -> list[str]:
        """The reductions, then the number of values and the values."""
        flat = self.flat(tensor, self._index.dtype(tensor), label)
        # Of no elements: inf, -inf and 0, which change nothing.
        results = [
            self.add(op_type, [flat], f"{label}_{op_type}", keepdims=1) for op_type in REDUCTIONS
        ]
        if self._count:
            first, step = self.constant([0]), self._step(tensor, flat, label)
            ends = [first, self.constant([_END]), first, step]
            values = self.add("Slice", [flat, *ends], f"{label}_values")
            size = self.add("Shape", [values], f"{label}_size")
            results.append(self.add("Cast", [size], f"{label}_real", to=onnx.TensorProto.FLOAT))
            results.append(values)
        return results

    def _step(self, tensor: str, flat: str, label: str) -> str:
        """How far the values are apart; an even step would pass over half of most channels."""
        shape = self._index.shape(tensor)
        known = [dim for dim in shape or () if dim is not None]
        if shape is not None and len(known) == len(shape):
            return self.constant([even_step(known, self._count)])
        size = self.add("Shape", [flat], f"{label}_elements")
        times = self.add("Div", [size, self.constant([2 * self._count])], f"{label}_times")
        even = self.add("Mul", [times, self.constant([2])], f"{label}_even")
        return self.add("Add", [even, self.constant([1])], f"{label}_step")


def _with_statistics(
    base: PreparedModel, tensors: Collection[str], *, with_values: bool
) -> tuple[onnx.ModelProto, list[str]]:
    """The base with the statistics as its output, and the tensors in the order of the output."""
    count = int(np.clip(_ALL_VALUES // max(len(tensors), 1), *_VALUES_PER_TENSOR))
    statistics = _Statistics(base.index, count if with_values else 0)
    wanted = frozenset(tensors)
    for name in tensors:
        if base.index.value[name].producer() is None:
            statistics.want(name)
    for node, proto in zip(base.index.nodes, base.nodes, strict=True):
        statistics.nodes.append(proto)
        for value in node.outputs:
            if value.name in wanted:
                statistics.want(value.name)
    statistics.finish()
    output = make_tensor_value_info(OUTPUT, onnx.TensorProto.FLOAT, [None])
    return variant(base, statistics.nodes, [output], statistics.constants), statistics.order


def _parted(output: Array, tensors: int, *, with_values: bool) -> Iterator[Array]:
    """Take the output of a run apart.

    Returns:
        First an array with a row of `REDUCTIONS` per tensor; then, of each tensor, the values.
    """
    head = len(REDUCTIONS)
    if not with_values:
        yield output.reshape(tensors, head)
        return
    starts, at = [], 0
    for _ in range(tensors):
        starts.append(at)
        at += head + 1 + int(output[at + head])
    yield output[np.array(starts)[:, None] + np.arange(head)]
    for start in starts:
        first = start + head + 1
        yield output[first : first + int(output[start + head])]


def even_step(shape: Sequence[int], count: int) -> int:
    """The step that takes about this many values of a tensor, from all of its channels alike."""
    size = math.prod(shape)
    step = max(-(-size // count), 1)
    # With a step that shares no factor with any dim, no row, column or channel is passed over.
    while math.gcd(step, size) != 1 and step < size:
        step += 1
    return step


@dataclass(frozen=True)
class TensorStatistics:
    """What tensors were seen to be.

    Attributes:
        whole: Smallest and largest value of every tensor that has a range.
        samples: How many samples were run.
        strange: Tensors without a range, and the first sample on which they were infinite or
            undefined.
        histograms: Of evenly spread values, by tensor; empty if only extremes were asked for.
    """

    whole: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    samples: int = 0
    strange: Mapping[str, int] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)


def collect_statistics(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    tensors: Collection[str],
    *,
    with_values: bool = False,
    as_written: bool = False,
    total: int | None = None,
    progress: Progress | None = None,
) -> TensorStatistics:
    """Run the model on each sample, once, in memory that does not grow with their number.

    Extremes are taken inside the engine; without values, what comes back per sample are three
    numbers per tensor. Values are counted into histograms as they come.

    Args:
        base: The model.
        worker: Of the reference engine.
        samples: Input sets, read one at a time.
        tensors: What to watch: float tensors of the main graph.
        with_values: Whether to make histograms.
        as_written: Whether to run every op as it is written, without the engine's optimizations.
        total: How many samples there are, if they can't tell.
        progress: Told after every sample.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    if not tensors:
        return TensorStatistics()
    model, order = _with_statistics(base, tensors, with_values=with_values)
    extremes = _Extremes(order)
    histograms = {name: Histogram() for name in order} if with_values else {}
    total = total or operator.length_hint(samples) or None
    # With the engine's optimizations: what is watched has a reader, so it is not fused away.
    # Seen on one core, everything watched, against as written (and the bare model): ResNet-18
    # 32 ms against 43 (28), MobileNetV2 19 against 27 (8), ViT 133 against 137 (93).
    options = AS_WRITTEN if as_written else opening_options(len(base.nodes))
    at = ""
    try:
        with running(base, worker, model, options) as run:
            for feeds in samples:
                at = f" on sample {extremes.samples}"
                reduced, *values = _parted(run(feeds)[OUTPUT], len(order), with_values=with_values)
                extremes.add(reduced)
                for histogram, some in zip(histograms.values(), values, strict=True):
                    histogram.add(some)
                if progress is not None:
                    progress(extremes.samples, total)
    except WorkerFailure as failure:
        raise EngineError(
            f"The float model does not run{at}, so it can't be calibrated: {failure}",
            advice_on(failure, base.index.model, worker.engine, _OTHER_INPUTS),
        ) from None
    if not extremes.samples:
        raise ModelError("There is no calibration data.", "Give at least one sample.")
    return TensorStatistics(extremes.ranges(), extremes.samples, extremes.strange, histograms)


def watched_tensors(index: GraphIndex, placement: Placement | None = None) -> list[str]:
    """Every float tensor of the main graph that is not a constant and not known to be empty.

    Args:
        index: The model.
        placement: Only what it quantizes; None is everything.
    """
    quantized = None
    if placement is not None:
        quantized = {edge.tensor for edge in index.effective(placement)}
    return [
        name
        for name, value in index.value.items()
        if index.is_float(name)
        and not value.is_initializer()
        and 0 not in (index.shape(name) or ())
        and index.readers(name)
        and (quantized is None or name in quantized)
    ]


def warn_of(strange: Mapping[str, int]) -> None:
    """Name the tensors that have no range."""
    for name, sample in strange.items():
        _logger.warning(
            "%s takes infinite or undefined values, first in sample %d: it has no range",
            name, sample,
        )  # fmt: skip


class _Extremes:
    """Smallest and largest value per tensor, and the first sample where one has none."""

    def __init__(self, tensors: Sequence[str]) -> None:
        self.samples = 0
        self.strange: dict[str, int] = {}
        self._tensors = tensors
        self._lows = np.full(len(tensors), np.inf)
        self._highs = np.full(len(tensors), -np.inf)

    def add(self, reductions: npt.NDArray[Any]) -> None:
        lows, highs, sums = reductions.T
        # A tensor without elements has an infinite minimum, too: above its maximum.
        infinite = (np.isinf(lows) | np.isinf(highs)) & (lows <= highs)
        for position in np.flatnonzero(infinite | np.isnan(sums)).tolist():
            self.strange.setdefault(self._tensors[position], self.samples)
        self._lows = np.fmin(self._lows, lows)
        self._highs = np.fmax(self._highs, highs)
        self.samples += 1

    def ranges(self) -> dict[str, tuple[float, float]]:
        pairs = zip(self._tensors, self._lows.tolist(), self._highs.tolist(), strict=True)
        return {
            name: (low, high)
            for name, low, high in pairs
            if low <= high and name not in self.strange
        }
