"""Timing as statistics: models take turns in short blocks, each compared with its neighbours.

Other work on the machine slows everything by the same factor for a while, from milliseconds to
minutes, so only what ran side by side can be compared. A block starts with runs that are dropped:
they warm the caches that the other model has emptied. The kept runs fall into two halves; the first
is compared with the block of the baseline before it, the second with the one after it, so that a
drift of the machine cancels out::

    baseline   |drop a a'|         |drop b b'|
    candidate            |drop x x'|                  score: the mean of log(a'/x) and log(b/x')

On a shared machine the noise lasts longer than a block, which makes many short blocks far better
than a few long ones. Measured on recorded runs of 40 ms on two shared cores, 7 s per comparison:
blocks of ten runs found a difference of 3 % in 15 of 100 comparisons, blocks of two runs in 89.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from qdqtune.records._measurement import Comparison

Blocks = list[tuple[float, ...]]
"""The kept samples of one model, in milliseconds, block by block."""
_Blocks = Sequence[Sequence[float]]

_HALF_BLOCK_MS = 4.0
# No engine call is so short that it needs more runs; but a broken engine may report any time.
_MOST_RUNS = 1 << 14
# For blocks that each start a process: the minimum duration of half a block as a fraction of the
# startup time, the fewest blocks in a screening, and the divisor applied to the usual number of
# blocks.
_WORTH_OVERHEAD = 0.125
_FEWEST_PROCESSES = 4
_PART_OF_ROUNDS = 3
FEWEST_ROUNDS = 8
"""Blocks of each model below which nothing can be said about a difference."""
# Two openings of the same file differ for as long as they are open, by their memory addresses: by
# 0.1 to 0.3 % if the model computes, by a few percent if it mostly moves memory.
_MARGIN = 0.01
# When to look, as a fraction of all rounds, and the confidence required then. Early looks have a
# cost: the chances of a wrong decision over all looks add up to 4.25 %, before the margin takes
# most of it away.
_LOOKS = ((0.25, 0.9995), (0.5, 0.998), (1.0, 0.96))
# Slower models drop no runs: that would take a third of the time, for far less than the margin.
_COLD_MATTERS_BELOW_MS = 20.0
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
# The deviation of the median of normal numbers over that of their mean.
_MEDIAN_PER_MEAN = 1.2533


@dataclass(frozen=True)
class BlockShape:
    """How many runs a block has.

    Attributes:
        drop: First runs, which only warm the caches.
        half: Kept runs in each half of the block.
        latency_ms: Approximate duration of one run.
    """

    drop: int
    half: int
    latency_ms: float

    @property
    def runs(self) -> int:
        """Total number of runs in a block."""
        return self.drop + 2 * self.half

    @property
    def block_ms(self) -> float:
        """Approximate duration of a block."""
        return self.runs * self.latency_ms

    @classmethod
    def of(cls, latency_ms: float, overhead_ms: float = 0.0) -> BlockShape:
        """Returns the block for a model with this latency.

        After a switch, the first run cost about 0.1 ms more (7 % of 0.3 ms, 2 % of 6 ms, 0.3 % of
        50 ms); the second mattered only to models below 2 ms.

        Args:
            latency_ms: Approximate duration of one run.
            overhead_ms: Duration of a block beyond its runs. If each block starts a process, a few
                runs would not be worth it.
        """
        half_ms = max(_HALF_BLOCK_MS, _WORTH_OVERHEAD * overhead_ms)
        half = min(_MOST_RUNS, max(1, math.ceil(half_ms / latency_ms)))
        drop = (latency_ms < _COLD_MATTERS_BELOW_MS) + (latency_ms < 2.0)
        return cls(drop, half, latency_ms)


@dataclass(frozen=True)
class Plan:
    """The schedule of a comparison.

    Attributes:
        shapes: The block of each model; the first is the baseline.
        rounds: Blocks of each candidate; the baseline has one more.
        fixed: Whether to run all rounds, however clear the differences are.
        fewest_rounds: Rounds that are run even if time is up.
    """

    shapes: tuple[BlockShape, ...]
    rounds: int
    fixed: bool = False
    fewest_rounds: int = FEWEST_ROUNDS

    @property
    def looks(self) -> dict[int, float]:
        """Numbers of rounds after which a verdict is attempted, with the confidence it needs."""
        if self.fixed:
            return {}
        # Of looks that coincide, the strictest counts.
        return {max(FEWEST_ROUNDS, round(part * self.rounds)): sure for part, sure in _LOOKS[::-1]}


@dataclass(frozen=True)
class Round:
    """One block of each candidate between two blocks of the baseline.

    Attributes:
        baseline_ms: Median of the baseline's block that ends the round.
        latencies_ms: Median of each candidate's block.
        log_ratios: How much faster than the baseline around it each candidate was.
    """

    baseline_ms: float
    latencies_ms: tuple[float, ...]
    log_ratios: tuple[float, ...]


def plan_turns(
    latencies_ms: Sequence[float],
    budget_s: float,
    runs: int | None = None,
    rounds: int | None = None,
    overhead_ms: float = 0.0,
    fewest_rounds: int = FEWEST_ROUNDS,
) -> Plan:
    """Fits as many rounds as possible into the time.

    Args:
        latencies_ms: Approximate latency of each model; the first is the baseline.
        budget_s: Seconds for all timed runs together.
        runs: Minimum kept runs of each model; if set, the budget is ignored.
        rounds: Blocks of each candidate; if set, the budget is ignored.
        overhead_ms: Duration of a block beyond its runs; a large overhead means fewer and longer
            blocks.
        fewest_rounds: Rounds that are run even if time is up.
    """
    shapes = tuple(BlockShape.of(latency_ms, overhead_ms) for latency_ms in latencies_ms)
    if rounds is not None:
        if overhead_ms:
            few = min(rounds // _PART_OF_ROUNDS, FEWEST_ROUNDS)
            rounds = min(rounds, max(few, _FEWEST_PROCESSES))
        return Plan(shapes, rounds, True, fewest_rounds)
    if runs is not None:
        # Few runs make short blocks: with too few blocks no conclusion would be possible.
        most = math.ceil(runs / (2 * FEWEST_ROUNDS))
        shapes = tuple(replace(shape, half=min(shape.half, most)) for shape in shapes)
        rounds = math.ceil(runs / min(2 * shape.half for shape in shapes))
        return Plan(shapes, max(FEWEST_ROUNDS, rounds), True, fewest_rounds)
    blocks_ms = [shape.block_ms + overhead_ms for shape in shapes]
    rounds = math.floor((budget_s * 1000.0 - blocks_ms[0]) / sum(blocks_ms))
    return Plan(shapes, max(FEWEST_ROUNDS, rounds), False, fewest_rounds)


def scores(baseline: _Blocks, candidate: _Blocks) -> list[float]:
    """Returns one log ratio per block of the candidate; positive where the candidate is faster.

    Its halves are compared with the nearer halves of the blocks before and after it, and the two
    log ratios are averaged: a half that ran right after a switch is on the candidate's side in one
    of them and on the baseline's in the other, so that cold caches cancel out as drift does.

    Args:
        baseline: The blocks around those of the candidate: one more than the candidate has.
        candidate: The blocks of the candidate.
    """
    around, between = [*map(_halves, baseline)], map(_halves, candidate)
    return [
        (math.log(before[1] / block[0]) + math.log(after[0] / block[1])) / 2.0
        for before, block, after in zip(around, between, around[1:], strict=False)
    ]


def compare_blocks(
    baseline: _Blocks,
    candidate: _Blocks,
    confidence: float = _LOOKS[-1][1],
    *,
    is_for_later: bool = False,
    contention: float = 0.0,
) -> Comparison:
    """Compares two models that took turns.

    On a busy machine, their estimated undisturbed latencies are compared.

    Args:
        baseline: The blocks around those of the candidate: one more than the candidate has.
        candidate: The blocks of the candidate.
        confidence: Level of the interval.
        is_for_later: Whether the interval must also hold for later measurements: it is widened if
            neighbouring blocks agree more than distant ones.
        contention: Share of the time that the engine waited for a core.
    """
    is_busy = contention >= BUSY_SHARE
    if is_busy:
        middle = _undisturbed_log_ratio(baseline, candidate, contention)
        seen = _seen_half_width(baseline, candidate, contention, confidence)
        half_width = max(least_half_width(contention), seen)
        low, high = middle - half_width, middle + half_width
    else:
        log_ratios = scores(baseline, candidate)
        correlation = correlation_time(log_ratios) if is_for_later else 1.0
        middle = statistics.median(log_ratios)
        low, high = median_interval(log_ratios, confidence, correlation)
    return Comparison(
        ratio=math.exp(middle),
        low=math.exp(low),
        high=math.exp(high),
        confidence=confidence,
        pairs=len(candidate),
        margin=_MARGIN,
        contention=min(1.0, contention) if is_busy else 0.0,
    )


def gain_of(log_ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the median of the log ratios of two models that took turns, and its standard error.

    The error comes from the median deviation, which a few disturbed blocks hardly change, and
    assumes normally distributed values.
    """
    error = _MEDIAN_PER_MEAN * robust_deviation(log_ratios) / math.sqrt(len(log_ratios))
    return statistics.median(log_ratios), error


def take_turns(
    time_block: Callable[[int, int], Sequence[float]],
    plan: Plan,
    progress: Callable[[int, int], None] | None = None,
    time_is_up: Callable[[], bool] = lambda: False,
    on_round: Callable[[Round], None] | None = None,
    contention: Callable[[], float] = lambda: 0.0,
) -> tuple[list[Blocks], list[Comparison]]:
    """Times models against the first of them, and stops when every difference is clear.

    On a busy machine, all rounds are run.

    Args:
        time_block: Runs the model with a given number a given number of times; returns one sample
            per run.
        plan: Blocks and rounds.
        progress: Called after each round with the rounds done and planned.
        time_is_up: Called after each round; True ends the timing early.
        on_round: Called with the results of each round.
        contention: Returns the share of the time so far that the engine waited for a core.

    Returns:
        The kept blocks of each model, and one comparison per candidate.
    """
    blocks: list[Blocks] = [[] for _ in plan.shapes]
    comparisons: list[Comparison] = []
    looks = plan.looks

    def take(model: int) -> None:
        shape = plan.shapes[model]
        blocks[model].append(tuple(time_block(model, shape.runs)[shape.drop :]))

    take(0)
    for done in range(1, plan.rounds + 1):
        # Every other round runs backwards, so that each candidate is near the preceding baseline
        # block as often as near the following one.
        candidates = range(1, len(blocks))
        for model in candidates if done % 2 else reversed(candidates):
            take(model)
        take(0)
        if on_round is not None:
            on_round(_last_round(blocks))
        if progress is not None:
            progress(done, plan.rounds)
        ended = done == plan.rounds or (time_is_up() and done >= plan.fewest_rounds)
        if not (ended or done in looks):
            continue
        share = contention()
        if share >= BUSY_SHARE and not ended:
            continue
        sure = _LOOKS[-1][1] if ended else looks[done]
        comparisons = [
            compare_blocks(blocks[0], each, sure, is_for_later=plan.fixed, contention=share)
            for each in blocks[1:]
        ]
        if ended or all(each.verdict.differs for each in comparisons):
            break
    return blocks, comparisons


def _last_round(blocks: Sequence[Blocks]) -> Round:
    baseline, *candidates = blocks
    return Round(
        statistics.median(baseline[-1]),
        tuple(statistics.median(each[-1]) for each in candidates),
        tuple(scores(baseline[-2:], each[-1:])[0] for each in candidates),
    )


def _halves(block: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the two halves of a block."""
    middle = len(block) // 2
    return statistics.median(block[:middle]), statistics.median(block[middle:])


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


def least_half_width(share: float) -> float:
    """Half of the minimum width of an interval, as a log ratio.

    Args:
        share: Share of the time that the engine waited for a core.
    """
    return min(_MOST_HALF_WIDTH, _HALF_WIDTH_PER_SHARE * share)


def _undisturbed_log_ratio(baseline: _Blocks, candidate: _Blocks, share: float) -> float:
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
    baseline: _Blocks,
    candidate: _Blocks,
    share: float,
    confidence: float,
) -> float:
    """Estimate the uncertainty of the ratio from the ratios of a few long consecutive segments.

    A single segment that differs is a disturbance, and the fastest runs come from the others.
    """
    length = len(candidate) // _SEGMENTS
    if length == 0:
        return math.inf
    starts = range(0, length * _SEGMENTS, length)
    ratios = [
        _undisturbed_log_ratio(baseline[i : i + length], candidate[i : i + length], share)
        for i in starts
    ]
    deviations = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    return deviations * robust_deviation(ratios) / math.sqrt(_SEGMENTS)
