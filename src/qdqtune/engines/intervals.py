"""Confidence intervals for the median, without assumptions about the noise distribution.

The estimate is the median, with the exact interval of the sign test: it needs no symmetry and no
finite variance. The differences of neighbouring runs have a sharp peak and very long tails, where
the median is the best of the usual estimates. On recorded runs of 40 ms on two shared cores, with
equal time, the middle half of the estimates spanned 0.6 % for the median, 0.8 % for the
Hodges-Lehmann estimate of Wilcoxon's test, 1.4 % for the mean.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Sequence
from functools import lru_cache


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
