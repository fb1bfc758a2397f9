"""Running the model on samples, and what its float tensors are seen to be meanwhile."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qdqtune.calibration.histogram import Histogram
from qdqtune.calibration.random_inputs import Feeds
from qdqtune.calibration.reductions import OUTPUT, parted, with_reductions
from qdqtune.engines.custom_ops import advice_on
from qdqtune.engines.isolated import OpenModel, Worker, WorkerFailure
from qdqtune.engines.reference_engine import AS_WRITTEN, opening_options
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.errors import EngineError, ModelError
from qdqtune.records.placement import Placement

Progress = Callable[[int, "int | None"], None]
"""Takes how many samples are done, and how many there are if that is known."""

_logger = logging.getLogger(__name__)

_OTHER_INPUTS = "Feed it with what it gets in use; of open dims, not all sizes may be possible."


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
        total: How many samples there are, if they can't tell.
        progress: Told after every sample.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    if not tensors:
        return TensorStatistics()
    model, order = with_reductions(base, tensors, with_values=with_values)
    extremes = _Extremes(order)
    histograms = {name: Histogram() for name in order} if with_values else {}
    total = total or operator.length_hint(samples) or None
    path = base.write_for_now(model.SerializeToString(), "calibration")
    opened: OpenModel | None = None
    try:
        # With the engine's optimizations: what is watched has a reader, so it is not fused away.
        # Seen on one core, everything watched, against as written (and the bare model): ResNet-18
        # 32 ms against 43 (28), MobileNetV2 19 against 27 (8), ViT 133 against 137 (93).
        opened = _open(worker, path, len(base.nodes))
        for feeds in samples:
            output = worker.run(opened, feeds)[OUTPUT]
            reduced, *values = parted(output, len(order), with_values=with_values)
            extremes.add(reduced)
            for histogram, some in zip(histograms.values(), values, strict=True):
                histogram.add(some)
            if progress is not None:
                progress(extremes.samples, total)
        worker.release(opened)
    except WorkerFailure as failure:
        at = "" if opened is None else f" on sample {extremes.samples}"
        raise EngineError(
            f"The float model does not run{at}, so it can't be calibrated: {failure}",
            advice_on(failure, base.index.model, worker.engine, _OTHER_INPUTS),
        ) from None
    finally:
        path.unlink(missing_ok=True)
    if not extremes.samples:
        raise ModelError("There is no calibration data.", "Give at least one sample.")
    return TensorStatistics(extremes.ranges(), extremes.samples, extremes.strange, histograms)


def _open(worker: Worker, path: Path, nodes: int) -> OpenModel:
    """Open a watched model; as it is written if the engine's optimizations can't cope with it.

    Seen in ONNX Runtime 1.31: it fuses the GELU of a GPT-2 although one of its tensors is watched,
    and then misses that tensor.
    """
    try:
        return worker.open(path, opening_options(nodes))
    except WorkerFailure as failure:
        try:
            return worker.open(path, AS_WRITTEN)
        except WorkerFailure:
            raise failure from None


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
