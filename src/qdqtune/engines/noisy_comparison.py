"""Comparing models on a core that other work keeps taking away.

CPU time leaves out the turns of others, but not what they do to the caches: after each of them a
model reads its weights from memory again. That slows a large model more than a small one, so that
the ratio of typical runs moves with what else runs on the machine, by far more than neighbouring
blocks show, and for minutes. Seen with five busy processes on the core, ResNet-18 (12 MB) against
its int8 form, processes of ten seconds each: the ratio of the medians went from 2.8 to 4.1, and was
2.5 to 3.0 on a quiet core.

The comparison is therefore one of undisturbed runs. Even the fastest runs may be disturbed; the
more they are, the more they differ among themselves. The undisturbed latency is taken to lie as far
below the fastest few as those lie below the next. In those processes that gave ratios around 2.4
with a deviation of 0.04.

Where the engine hardly gets a turn, no run is undisturbed, and the few that nearly are come too
rarely to be compared: the part of the runs that counts grows with the share of the time that the
engine waits.

What moves between two measurements can't be seen in one of them. The interval therefore has a least
width in proportion to that share: a convention, fitted to repeated measurements on one machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from qdqtune.records.measurement import Comparison

BUSY_SHARE = 0.1
"""From this share of the time spent waiting for a core, the machine counts as busy."""

# Up to one share of waiting, some runs are hardly disturbed; from the other on, none are.
_HARDLY, _ALWAYS = 0.6, 0.8
# The fastest few and the next, as parts of all runs; and which part counts if all are disturbed.
_FASTEST, _NEXT, _DISTURBED = 0.005, 0.05, 0.25
_FEWEST_RUNS = 3
# Half of the interval's least width, as a log ratio: by share of waiting, and at most.
_HALF_WIDTH_PER_SHARE = 0.3
_MOST_HALF_WIDTH = 0.12
_SEGMENTS = 4
# The deviation of normal numbers over their median deviation.
_NORMAL_PER_MEDIAN = 1.4826

_Blocks = Sequence[Sequence[float]]


def compare_disturbed(
    baseline: _Blocks, candidate: _Blocks, share: float, confidence: float, margin: float
) -> Comparison:
    """Compares two models that took turns by what they would take undisturbed.

    Args:
        baseline: The blocks around those of the candidate: one more than the candidate has.
        candidate: The blocks of the candidate.
        share: Share of the time that the engine waited for a core.
        confidence: Level of the interval.
        margin: Relative difference below which the two count as the same.
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
    """Half of the least width of an interval, as a log ratio.

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
    """What the ratios of a few long segments, one after the other, say about the ratio of all.

    A single segment that differs is a disturbance, and the fastest runs are those of the others.
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
