"""Ranges that cut off rare values, so that the others get finer steps.

Which is better, the whole range or a clipped one, depends on the model: on a trained MobileNetV2
clipping lifted the output from 12.8 to 18 dB, on an audio embedding it cost 9 dB. Workflows try
all ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from qdqtune.calibration.histogram import Histogram
from qdqtune.calibration.range_fitting import (
    Range,
    frequent_range,
    least_divergence_range,
    least_error_range,
)
from qdqtune.calibration.tensor_statistics import TensorStatistics
from qdqtune.qdq.encoding import TensorFormat
from qdqtune.records.ranges import RangeMethod

RangesByWay = Mapping[RangeMethod, Mapping[str, Range]]

_FITS: dict[RangeMethod, Callable[[Histogram, Range, TensorFormat], Range]] = {
    RangeMethod.ENTROPY: least_divergence_range,
    RangeMethod.PERCENTILE: lambda seen, whole, _layout: frequent_range(seen, whole),
    RangeMethod.MSE: least_error_range,
}


def ranges_by_way(seen: TensorStatistics, layout: TensorFormat) -> RangesByWay:
    """The ranges of all tensors, whole, and clipped in every way if there are histograms.

    Args:
        seen: What the tensors were seen to be.
        layout: The format that they are quantized in.
    """
    ways: dict[RangeMethod, Mapping[str, Range]] = {RangeMethod.MAX: seen.whole}
    for way, fit in _FITS.items() if seen.histograms else ():
        ways[way] = {
            name: fit(seen.histograms[name], whole, layout) for name, whole in seen.whole.items()
        }
    return ways
