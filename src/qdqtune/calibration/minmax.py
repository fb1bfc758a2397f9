"""Ranges by running the model: the smallest and largest value of every float tensor."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtune.calibration.random_inputs import Feeds
from qdqtune.calibration.tensor_statistics import (
    Progress,
    collect_statistics,
    warn_of,
    watched_tensors,
)
from qdqtune.engines.isolated import Worker
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, Ranges


def collect_ranges(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    source: CalibrationSource,
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """Run the model on each sample and keep the extremes, in constant memory.

    Args:
        base: The model.
        worker: Of the reference engine.
        samples: Input sets, read one at a time.
        source: Where the samples come from.
        placement: Watch only what it quantizes; None watches every float tensor.
        progress: Told after every sample.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    tensors = watched_tensors(base.index, placement)
    seen = collect_statistics(base, worker, samples, tensors, progress=progress)
    warn_of(seen.strange)
    return Ranges(seen.whole, source, seen.samples)
