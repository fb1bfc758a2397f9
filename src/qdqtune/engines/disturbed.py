"""Comparing models on a core that other work keeps taking away.

CPU time leaves out the turns of others, but not what they do to the caches: after each of them a
model reads its weights from memory again. That slows a large model more than a small one, so that
the ratio of typical runs moves with what else runs on the machine, by far more than neighbouring
blocks show, and for minutes. Seen with five busy processes on the core, ResNet-18 (12 MB) against
its int8 form, processes of ten seconds each: the ratio of the medians went from 2.8 to 4.1, that of
the fastest 1 % of the runs from 2.5 to 2.9; on a quiet core, they were 2.8 to 3.0 and 2.6.

The comparison is therefore one of the least disturbed runs. Where the engine hardly gets a turn,
no run is undisturbed, and the few that nearly are come too rarely to be compared: the part of the
runs that counts grows with the share of the time that the engine waits.

What moves between two measurements can't be seen in one of them. The interval is therefore at
least as wide as such measurements were seen to differ, in proportion to that share.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from qdqtune.records.measurement import Comparison

BUSY_SHARE = 0.1
"""From this share of the time spent waiting for a core, the machine counts as busy."""

# Which part of the runs counts: up to the one share of waiting, and from the other.
_RARE, _COMMON = (0.6, 0.01), (0.8, 0.25)
_FEWEST_RUNS = 3
# Half of the interval's least width, as a log ratio: by share of waiting, and at most.
_HALF_WIDTH_PER_SHARE = 0.3
_MOST_HALF_WIDTH = 0.12
_SEGMENTS = 4

_Blocks = Sequence[Sequence[float]]


def compare_disturbed(
    baseline: _Blocks, candidate: _Blocks, share: float, confidence: float, margin: float
) -> Comparison:
    """Compares the least disturbed runs of two models that took turns.

    Args:
        baseline: The blocks around those of the candidate: one more than the candidate has.
        candidate: The blocks of the candidate.
        share: Share of the time that the engine waited for a core.
        confidence: Level of the interval.
        margin: Relative difference below which the two count as the same.
    """
    part = _part_that_counts(share)
    middle = _log_ratio(baseline, candidate, part)
    least = min(_MOST_HALF_WIDTH, _HALF_WIDTH_PER_SHARE * share)
    half_width = max(least, _seen_half_width(baseline, candidate, part, confidence))
    return Comparison(
        ratio=math.exp(middle),
        low=math.exp(middle - half_width),
        high=math.exp(middle + half_width),
        confidence=confidence,
        pairs=len(candidate),
        margin=margin,
        contention=min(1.0, share),
    )


def _part_that_counts(share: float) -> float:
    (low, rare), (high, common) = _RARE, _COMMON
    way = min(1.0, max(0.0, (share - low) / (high - low)))
    return math.exp((1.0 - way) * math.log(rare) + way * math.log(common))


def _log_ratio(baseline: _Blocks, candidate: _Blocks, part: float) -> float:
    return math.log(_fast_run(baseline, part) / _fast_run(candidate, part))


def _fast_run(blocks: _Blocks, part: float) -> float:
    """The slowest run of the fastest part."""
    ordered = sorted(sample for block in blocks for sample in block)
    count = max(_FEWEST_RUNS, math.ceil(part * len(ordered)))
    return ordered[min(count, len(ordered)) - 1]


def _seen_half_width(
    baseline: _Blocks, candidate: _Blocks, part: float, confidence: float
) -> float:
    """What the ratios of a few long segments, one after the other, say about the ratio of all."""
    length = len(candidate) // _SEGMENTS
    if length == 0:
        return math.inf
    starts = range(0, length * _SEGMENTS, length)
    ratios = [_log_ratio(baseline[i : i + length], candidate[i : i + length], part) for i in starts]
    deviations = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    return deviations * statistics.stdev(ratios) / math.sqrt(_SEGMENTS)
