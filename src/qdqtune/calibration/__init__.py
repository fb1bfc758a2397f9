"""Tensor ranges from data, streamed.

What is offered here is imported when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.calibration._ranges import collect_ranges
    from qdqtune.calibration._sample_set import SampleSet, open_samples
    from qdqtune.calibration._tensor_capture import observe_shapes
    from qdqtune.records._ranges import CalibrationSource

__all__ = [
    "CalibrationSource",
    "SampleSet",
    "collect_ranges",
    "observe_shapes",
    "open_samples",
]

_HOMES = {
    "CalibrationSource": "qdqtune.records._ranges",
    "SampleSet": "qdqtune.calibration._sample_set",
    "collect_ranges": "qdqtune.calibration._ranges",
    "observe_shapes": "qdqtune.calibration._tensor_capture",
    "open_samples": "qdqtune.calibration._sample_set",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
