"""Timing as statistics: models take turns in short blocks, each is compared with its neighbours.

Other work on the machine slows everything by the same factor for a while, from milliseconds to
minutes, so only what ran side by side can be compared. A block starts with runs that are dropped:
they warm the caches that the other model has emptied. The kept runs fall into two halves; the first
is compared with the block of the baseline before it, the second with the one after it, so that a
drift of the machine cancels out::

    baseline   |drop a a'|         |drop b b'|
    candidate            |drop x x'|                  score: the mean of log(a'/x) and log(b/x')

On a shared machine the noise lasts longer than a block, which makes many short blocks far better
than a few long ones. Seen on recorded runs of 40 ms on two shared cores, 7 s per comparison: blocks
of ten runs found a difference of 3 % in 15 of 100 comparisons, blocks of two runs in 89.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from qdqtune.engines._intervals import (
    BUSY_SHARE,
    compare_disturbed,
    correlation_time,
    median_interval,
    robust_deviation,
)
from qdqtune.records._measurement import Comparison, Verdict

Blocks = list[tuple[float, ...]]
"""The kept samples of one model, in milliseconds, block by block."""

_HALF_BLOCK_MS = 4.0
# No call of an engine is so short that more runs would be needed; an engine may claim anything.
_MOST_RUNS = 1 << 14
# Blocks that are processes of their own: how long half of one runs at least, as a part of what it
# takes to start it; how many of them a screening is worth, and which part of blocks that are none.
_WORTH_OVERHEAD = 0.125
_FEWEST_PROCESSES = 4
_PART_OF_ROUNDS = 3
FEWEST_ROUNDS = 8
"""Blocks of each model below which nothing can be said about a difference."""
# Two opens of the same file differ for as long as they are open, by where their memory lies: by
# 0.1 to 0.3 % if the model computes, by some percent if it mostly moves memory.
_MARGIN = 0.01
# When to look, as a part of all rounds, and how sure to be then. Looking early is paid for: the
# chances of a wrong call at all looks add up to 4.25 %, before the margin takes most of it away.
_LOOKS = ((0.25, 0.9995), (0.5, 0.998), (1.0, 0.96))
# The widest interval, as a relative half width, that still shows a difference of 3 %.
_USEFUL_HALF_WIDTH = 0.012
# Dropped runs move the compared runs apart, and the machine has more time to change.
_WIDER_BY_DROPPING = 1.4
_COLD_MATTERS_BELOW_MS = 20.0
# The deviation of the median of normal numbers over that of their mean.
_MEDIAN_PER_MEAN = 1.2533


@dataclass(frozen=True)
class BlockShape:
    """How many runs a block has.

    Attributes:
        drop: First runs, which only warm the caches.
        half: Kept runs in each half of the block.
        latency_ms: What one run takes, roughly.
    """

    drop: int
    half: int
    latency_ms: float

    @property
    def runs(self) -> int:
        """All runs of a block."""
        return self.drop + 2 * self.half

    @property
    def block_ms(self) -> float:
        """What a block takes, roughly."""
        return self.runs * self.latency_ms

    @classmethod
    def of(cls, latency_ms: float, overhead_ms: float = 0.0) -> BlockShape:
        """Returns the block for a model that takes so long.

        Args:
            latency_ms: What one run takes, roughly.
            overhead_ms: What a block takes beside its runs: where it is a process of its own, a few
                runs would not be worth starting it.

        The first run after a switch was seen to cost about 0.1 ms more (7 % of 0.3 ms, 2 % of
        6 ms, 0.3 % of 50 ms), the second to matter only to models below 2 ms.
        """
        half_ms = max(_HALF_BLOCK_MS, _WORTH_OVERHEAD * overhead_ms)
        half = min(_MOST_RUNS, max(1, math.ceil(half_ms / latency_ms)))
        return cls(2 if latency_ms < 2.0 else 1, half, latency_ms)

    def leaner(self) -> BlockShape:
        """Returns the block without dropped runs, if the model is slow enough to go without."""
        return self if self.latency_ms < _COLD_MATTERS_BELOW_MS else replace(self, drop=0)


@dataclass(frozen=True)
class Plan:
    """How a comparison is made.

    Attributes:
        shapes: The block of each model; the first is the baseline.
        rounds: Blocks of each candidate; the baseline has one more.
        fixed: Whether to play all rounds as they are, however clear the differences are.
        fewest_rounds: Those that are played even if time is up.
    """

    shapes: tuple[BlockShape, ...]
    rounds: int
    fixed: bool = False
    fewest_rounds: int = FEWEST_ROUNDS

    @property
    def round_ms(self) -> float:
        """What one block of each model takes, roughly."""
        return sum(shape.block_ms for shape in self.shapes)

    def leaner(self) -> Plan:
        """Returns the plan that spends the same time without dropped runs, where that can be."""
        plan = Plan(tuple(shape.leaner() for shape in self.shapes), self.rounds)
        return replace(plan, rounds=math.floor(self.rounds * self.round_ms / plan.round_ms))

    def after(self, spent_ms: float) -> Plan:
        """Returns the plan for the time that is left."""
        rounds = math.floor(self.rounds - spent_ms / self.round_ms)
        return replace(self, rounds=max(FEWEST_ROUNDS, rounds))

    @property
    def looks(self) -> list[tuple[int, float]]:
        """After how many rounds a verdict is tried, and how sure it must be then."""
        if self.fixed:
            return [(self.rounds, _LOOKS[-1][1])]
        return [(max(FEWEST_ROUNDS, round(part * self.rounds)), sure) for part, sure in _LOOKS]


@dataclass(frozen=True)
class Round:
    """A block of each candidate between two of the baseline.

    Attributes:
        baseline_ms: Median of the baseline's block at the end of it.
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
) -> Plan:
    """Fits as many rounds as possible into the time.

    Args:
        latencies_ms: What each model takes, roughly; the first is the baseline.
        budget_s: Seconds for all timed runs together.
        runs: Kept runs of each model, at least; with it, the time does not matter.
        rounds: Blocks of each candidate; with it, the plan is not made to fit the time.
        overhead_ms: What a block takes beside its runs; if that is much, there are fewer blocks,
            and longer ones.
    """
    shapes = tuple(BlockShape.of(latency_ms, overhead_ms) for latency_ms in latencies_ms)
    if rounds is not None:
        if overhead_ms:
            few = min(rounds // _PART_OF_ROUNDS, FEWEST_ROUNDS)
            rounds = min(rounds, max(few, _FEWEST_PROCESSES))
        return Plan(tuple(shape.leaner() for shape in shapes), rounds, fixed=True)
    if runs is not None:
        # Few runs make short blocks: with too few blocks nothing could be said about them.
        most = math.ceil(runs / (2 * FEWEST_ROUNDS))
        shapes = tuple(replace(shape, half=min(shape.half, most)) for shape in shapes)
        rounds = math.ceil(runs / min(2 * shape.half for shape in shapes))
        return Plan(shapes, max(FEWEST_ROUNDS, rounds), fixed=True)
    plan = Plan(shapes, 0)
    spent_ms = shapes[0].block_ms + overhead_ms
    round_ms = plan.round_ms + overhead_ms * len(shapes)
    rounds = math.floor((budget_s * 1000.0 - spent_ms) / round_ms)
    return replace(plan, rounds=max(FEWEST_ROUNDS, rounds))


def scores(
    baseline: Sequence[Sequence[float]], candidate: Sequence[Sequence[float]]
) -> list[float]:
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
    baseline: Sequence[Sequence[float]],
    candidate: Sequence[Sequence[float]],
    confidence: float = _LOOKS[-1][1],
    margin: float = _MARGIN,
    *,
    is_for_later: bool = False,
) -> Comparison:
    """Compares two models that took turns.

    Args:
        baseline: The blocks around those of the candidate: one more than the candidate has.
        candidate: The blocks of the candidate.
        confidence: Level of the interval.
        margin: Relative difference below which the two count as the same.
        is_for_later: Whether the interval is to hold for later measurements too: neighbouring
            blocks that agree more than distant ones make it wider.
    """
    log_ratios = scores(baseline, candidate)
    correlation = correlation_time(log_ratios) if is_for_later else 1.0
    low, high = median_interval(log_ratios, confidence, correlation)
    return Comparison(
        ratio=math.exp(statistics.median(log_ratios)),
        low=math.exp(low),
        high=math.exp(high),
        confidence=confidence,
        pairs=len(log_ratios),
        margin=margin,
    )


def gain_of(log_ratios: Sequence[float]) -> tuple[float, float]:
    """Returns the median of the log ratios of two models that took turns, and its standard error.

    The error comes from the median deviation, so that a few disturbed blocks don't blow it up; it
    is that of a median of normal numbers.
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

    On a busy machine nothing is clear before the end.

    Warm caches cost a third of the time when a block has only two kept runs. Slow models therefore
    begin without dropped runs; on a machine that turns out to be quiet enough to afford them, they
    begin anew with them.

    Args:
        time_block: Runs model number so-and-so so many times; returns one sample per run.
        plan: Blocks and rounds.
        progress: Called after each round with the rounds done and planned.
        time_is_up: Asked after each round; ends the timing before its plan.
        on_round: Told what each round showed.
        contention: Tells the share of the time so far that the engine waited for a core.

    Returns:
        The kept blocks of each model, and one comparison per candidate.
    """
    alone = len(plan.shapes) == 1
    lean = plan if plan.fixed or alone else plan.leaner()
    turns = _Turns(time_block, lean, progress, time_is_up, on_round, contention)
    if lean != plan:
        turns.play(until=lean.looks[0][0])
        rest = plan.after(turns.done * lean.round_ms)
        if turns.promises_certainty(rest):
            turns = _Turns(time_block, rest, progress, time_is_up, on_round, contention)
    return turns.decide()


@dataclass
class _Turns:
    time_block: Callable[[int, int], Sequence[float]]
    plan: Plan
    progress: Callable[[int, int], None] | None
    time_is_up: Callable[[], bool]
    on_round: Callable[[Round], None] | None
    contention: Callable[[], float]
    done: int = field(default=0, init=False)
    blocks: list[Blocks] = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = [[] for _ in self.plan.shapes]

    def play(self, until: int) -> None:
        """Takes turns up to a number of rounds."""
        if not self.blocks[0]:
            self._take(0)
        while self.done < until:
            # Every other round backwards: each candidate is as often near the baseline before it
            # as near the one after it.
            candidates = range(1, len(self.blocks))
            for model in reversed(candidates) if self.done % 2 else candidates:
                self._take(model)
            self._take(0)
            self.done += 1
            if self.on_round is not None:
                self.on_round(self._last_round())
            if self.progress is not None:
                self.progress(self.done, self.plan.rounds)
            if self.time_is_up() and self.done >= self.plan.fewest_rounds:
                self.plan = replace(self.plan, rounds=self.done)
                return

    def decide(self) -> tuple[list[Blocks], list[Comparison]]:
        """Plays to the end, or to the look at which all is clear."""
        comparisons: list[Comparison] = []
        for until, confidence in self.plan.looks:
            self.play(until)
            ended = self.done >= self.plan.rounds
            sure = _LOOKS[-1][1] if ended else confidence
            share = self.contention()
            if share >= BUSY_SHARE and not ended:
                continue
            comparisons = [self._compare(blocks, sure, share) for blocks in self.blocks[1:]]
            if ended or all(c.verdict is not Verdict.SAME for c in comparisons):
                break
        return self.blocks, comparisons

    def _compare(self, candidate: Blocks, confidence: float, share: float) -> Comparison:
        if share >= BUSY_SHARE:
            return compare_disturbed(self.blocks[0], candidate, share, confidence, _MARGIN)
        return compare_blocks(self.blocks[0], candidate, confidence, is_for_later=self.plan.fixed)

    def promises_certainty(self, plan: Plan) -> bool:
        """Whether the noise seen so far lets a plan with dropped runs end in useful intervals."""
        intervals = [
            median_interval(scores(self.blocks[0], candidate), _LOOKS[-1][1])
            for candidate in self.blocks[1:]
        ]
        half_width = max((high - low) / 2.0 for low, high in intervals)
        expected = half_width * _WIDER_BY_DROPPING * math.sqrt(self.done / plan.rounds)
        return expected <= _USEFUL_HALF_WIDTH

    def _last_round(self) -> Round:
        baseline, *candidates = self.blocks
        return Round(
            statistics.median(baseline[-1]),
            tuple(statistics.median(blocks[-1]) for blocks in candidates),
            tuple(scores(baseline[-2:], blocks[-1:])[0] for blocks in candidates),
        )

    def _take(self, model: int) -> None:
        shape = self.plan.shapes[model]
        samples = self.time_block(model, shape.runs)
        self.blocks[model].append(tuple(samples[shape.drop :]))


def _halves(block: Sequence[float]) -> tuple[float, float]:
    """Return the medians of the two halves of a block."""
    middle = len(block) // 2
    return statistics.median(block[:middle]), statistics.median(block[middle:])
