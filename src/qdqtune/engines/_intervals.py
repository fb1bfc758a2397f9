"""Confidence intervals of medians, also on a core that other processes keep taking away."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from functools import lru_cache

from qdqtune.records._measurement import Comparison

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


def median_interval(
    values: Sequence[float], confidence: float, correlation: float = 1.0
) -> tuple[float, float]:
    """Returns an interval that contains the true median with at least the given confidence.

    With too few values for the requested confidence, the interval is unbounded.

    Args:
        values: The observations, in order.
        confidence: The coverage probability, if the values are independent.
        correlation: Number of values worth one independent value, see `correlation_time`.
    """
    rank = _lower_rank(len(values), confidence)
    if rank == 0:
        return -math.inf, math.inf
    middle = len(values) / 2.0
    rank = max(1, math.floor(middle - (middle - rank) * math.sqrt(correlation)))
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


def correlation_time(values: Sequence[float]) -> float:
    """Returns the number of neighbouring values that are worth one independent value.

    It is the sum of the autocorrelations of the side of the median on which each value lies, up to
    an eighth of the number of values, with Bartlett weights, and never below 1.
    """
    middle = statistics.median(values) if values else 0.0
    sides = [(value > middle) - (value < middle) for value in values]
    power = sum(side * side for side in sides)
    most = len(values) // 8
    if not power:
        return 1.0
    total = 1.0
    for lag in range(1, most + 1):
        products = sum(map(operator.mul, sides, sides[lag:]))
        total += 2.0 * (1.0 - lag / (most + 1)) * products / power
    return max(1.0, total)


def robust_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of normal numbers with the same median absolute deviation."""
    middle = statistics.median(values)
    return _NORMAL_PER_MEDIAN * statistics.median(abs(value - middle) for value in values)


@lru_cache(maxsize=1024)
def _lower_rank(count: int, confidence: float) -> int:
    """Returns the largest k with P(fewer than k of count coins show heads) <= (1 - confidence) / 2.

    It is 0 if there is no such k.
    """
    tail = (1.0 - confidence) / 2.0
    below = 0.0
    for heads in range(count):
        log_ways = math.lgamma(count + 1) - math.lgamma(heads + 1) - math.lgamma(count - heads + 1)
        below += math.exp(log_ways - count * math.log(2.0))
        if below > tail:
            return heads
    return 0


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
    return deviations * robust_deviation(ratios) / math.sqrt(_SEGMENTS)
