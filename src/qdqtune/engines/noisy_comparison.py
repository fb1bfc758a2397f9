"""Compares models on a core that other processes keep taking away.

CPU time excludes the time slices of other processes, but not their effect on the caches: after each
of them a model reads its weights from memory again. That slows a large model more than a small one,
so the ratio of typical runs depends on what else runs on the machine, by far more than neighbouring
blocks show, and for minutes. With five busy processes on the core, ResNet-18 (12 MB) against its
int8 form in processes of ten seconds each, the ratio of the medians ranged from 2.8 to 4.1; on a
quiet core, it was 2.5 to 3.0.

The comparison therefore estimates undisturbed runs. Even the fastest runs may be disturbed; the
more they are, the more they differ among themselves. The undisturbed latency is assumed to lie as
far below the fastest few as those lie below the next. In those processes this gave ratios around
2.4 with a deviation of 0.04.

Where the engine rarely gets a core, no run is undisturbed, and the few that nearly are occur too
rarely to be compared: the fraction of the runs that counts grows with the share of the time that
the engine waits.

Variation between two measurements can't be seen within one of them. The interval therefore has a
minimum width in proportion to that share: a convention, fitted to repeated measurements on one
machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from qdqtune.records.measurement import Comparison

BUSY_SHARE = 0.1
"""Share of the time spent waiting for a core above which the machine counts as busy."""

# Up to the first share of waiting, some runs are hardly disturbed; from the second on, none are.
_HARDLY, _ALWAYS = 0.6, 0.8
# The fastest few and the next, as fractions of all runs; and the fraction if all are disturbed.
_FASTEST, _NEXT, _DISTURBED = 0.005, 0.05, 0.25
_FEWEST_RUNS = 3
# Half of the interval's minimum width, as a log ratio: per share of waiting, and at most.
_HALF_WIDTH_PER_SHARE = 0.3
_MOST_HALF_WIDTH = 0.12
_SEGMENTS = 4
# Standard deviation over median absolute deviation, for normal numbers.
_NORMAL_PER_MEDIAN = 1.4826

_Blocks = Sequence[Sequence[float]]


def compare_disturbed(
    baseline: _Blocks, candidate: _Blocks, share: float, confidence: float, margin: float
) -> Comparison:
    """Compares two interleaved models by their estimated undisturbed latencies.

    Args:
        baseline: The blocks around those of the candidate: one more than the candidate has.
        candidate: The blocks of the candidate.
        share: Share of the time that the engine waited for a core.
        confidence: Level of the interval.
        margin: Relative difference below which the two count as equal.
    """
    middle = _log_ratio(baseline, candidate, share)
    half_width = max(
        least_half_width(share), _seen_half_width(baseline, candidate, share, confidence)
    )
    return Comparison(
        ratio=math.exp(middle),
        low=math.exp(middle - half_width),
        high=math.exp(middle + half_width),
        confidence=confidence,
        pairs=len(candidate),
        margin=margin,
        contention=min(1.0, share),
    )


def least_half_width(share: float) -> float:
    """Half of the minimum width of an interval, as a log ratio.

    Args:
        share: Share of the time that the engine waited for a core.
    """
    return min(_MOST_HALF_WIDTH, _HALF_WIDTH_PER_SHARE * share)


def _log_ratio(baseline: _Blocks, candidate: _Blocks, share: float) -> float:
    return _log_undisturbed(baseline, share) - _log_undisturbed(candidate, share)


def _log_undisturbed(blocks: _Blocks, share: float) -> float:
    ordered = sorted(sample for block in blocks for sample in block)

    def fast(part: float) -> float:
        count = max(_FEWEST_RUNS, math.ceil(part * len(ordered)))
        return math.log(ordered[min(count, len(ordered)) - 1])

    disturbed = min(1.0, max(0.0, (share - _HARDLY) / (_ALWAYS - _HARDLY)))
    fastest = fast(_FASTEST ** (1.0 - disturbed) * _DISTURBED**disturbed)
    following = fast(_NEXT ** (1.0 - disturbed) * _DISTURBED**disturbed)
    return fastest - (1.0 - disturbed) * (following - fastest)


def _seen_half_width(
    baseline: _Blocks, candidate: _Blocks, share: float, confidence: float
) -> float:
    """Estimate the uncertainty of the ratio from the ratios of a few long consecutive segments.

    A single segment that differs is a disturbance, and the fastest runs come from the others.
    """
    length = len(candidate) // _SEGMENTS
    if length == 0:
        return math.inf
    starts = range(0, length * _SEGMENTS, length)
    ratios = [
        _log_ratio(baseline[i : i + length], candidate[i : i + length], share) for i in starts
    ]
    deviations = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    middle = statistics.median(ratios)
    spread = _NORMAL_PER_MEDIAN * statistics.median(abs(ratio - middle) for ratio in ratios)
    return deviations * spread / math.sqrt(_SEGMENTS)
