"""Tensor ranges from data, streamed.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.calibration._instrumentation import observe_shapes as observe_shapes
    from qdqtune.calibration._ranges import collect_ranges as collect_ranges
    from qdqtune.calibration._sample_set import SampleSet as SampleSet
    from qdqtune.calibration._sample_set import open_samples as open_samples
    from qdqtune.records._ranges import CalibrationSource as CalibrationSource

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.calibration._ranges": "collect_ranges",
        "qdqtune.calibration._sample_set": "SampleSet open_samples",
        "qdqtune.calibration._instrumentation": "observe_shapes",
        "qdqtune.records._ranges": "CalibrationSource",
    },
)
