"""Tensor ranges from data, streamed.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.calibration.minmax import collect_ranges
    from qdqtune.calibration.observed_shapes import observe_shapes
    from qdqtune.calibration.sample_set import SampleSet, open_samples
    from qdqtune.records.ranges import CalibrationSource

__all__ = [
    "CalibrationSource",
    "SampleSet",
    "collect_ranges",
    "observe_shapes",
    "open_samples",
]

_HOMES = {
    "CalibrationSource": "qdqtune.records.ranges",
    "SampleSet": "qdqtune.calibration.sample_set",
    "collect_ranges": "qdqtune.calibration.minmax",
    "observe_shapes": "qdqtune.calibration.observed_shapes",
    "open_samples": "qdqtune.calibration.sample_set",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
