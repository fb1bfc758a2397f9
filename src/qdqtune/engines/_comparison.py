"""Compares model files with a baseline in a worker; a failing model does not stop the others.

`compare_files` compares in one process, `compare_reopened` in several fresh ones, so that a lucky
opening is not taken for a gain: two openings of one file differ for as long as they are open, by
their memory addresses, or by the kernels that a builder happened to choose. One process can't show
that, however long it runs. So every process contributes one log ratio, and the interval follows
from their spread, by Student's t distribution; noise within a process also adds to that spread, so
the interval includes it.

For equal models on simulated machines whose openings differ by 2 % (one deviation), 22 of 100
comparisons in one process found a gain of 2 % or more; with five processes, fewer than one did.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from qdqtune.engines._pool import Job, WorkerPool
from qdqtune.engines._timing import (
    FEWEST_ROUNDS,
    Blocks,
    Plan,
    Round,
    least_half_width,
    plan_turns,
    take_turns,
)
from qdqtune.engines._worker import FailureKind, StoredFeeds, Worker, WorkerFailure
from qdqtune.records._measurement import Comparison, LayerTime, Measurement

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs, SessionOptions
    from qdqtune.engines._worker import OpenModel

Progress = Callable[[int, int], None]
"""Called with the rounds done and planned."""
TakeOutputs = Callable[[int, "Outputs"], None]
"""Called with a model's number and its outputs."""
TakeLayers = Callable[[int, "list[LayerTime]"], None]
"""Called with a model's number and its layers; empty if the engine can't list them."""


class MeasurementListener(Protocol):
    """Receives every measurement of a comparison as it is made."""

    def saw_round(self, models: tuple[int, ...], round_: Round) -> None:
        """Called after each round of the baseline and these candidates."""
        ...

    def saw_failure(self, model: int, error: str, *, refused: bool) -> None:
        """Called when a model fails; the others start over without it.

        Args:
            model: Its number.
            error: The reason.
            refused: Whether the engine reported it; otherwise it crashed or timed out.
        """
        ...


_PILOT_RUNS = 4
_LAYER_RUNS = 20
_MOST_DEATHS = 2
_PILOT_DROP = 1
# Longer than any call takes, and shorter than starting a program takes.
_LEAST_OVERHEAD_MS = 25.0
_SHORTEST_LIMIT_S = 30.0
_TIMES_BASELINE = 20.0

FEWEST_OPENINGS = 3
"""Below this number of openings, their variation can't be estimated."""
MOST_OPENINGS = 5

_CONFIDENCE = 0.99
# The quantiles of Student's distribution for that level, by degrees of freedom.
_STUDENT = {2: 9.925, 3: 5.841, 4: 4.604}
# Openings that agree this well are not repeated: more of them would not change the result.
_AGREEING = 0.0002
# Minimum change of the ratio when the files are opened again, as a log ratio.
_LEAST_HALF_WIDTH = 0.003
# Assumed variation of openings where there is no time to measure it: the deviation of a log ratio,
# and its weight in degrees of freedom beside the measured variation of the baseline.
_ASSUMED, _WORTH = 0.0085, 2
# Enough for the median of one opening out of several.
_FEWEST_ROUNDS_AGAIN = 4
# More rounds than any real engine can complete, since its blocks take eight milliseconds or more:
# the interval should be as narrow as time allows.
_MOST_ROUNDS_PER_S = 60


def compare_files(
    worker: Worker,
    paths: Sequence[str | os.PathLike[str]],
    feeds: Feeds | StoredFeeds,
    *,
    budget_s: float = 7.4,
    runs: int | None = None,
    min_time_s: float | None = None,
    rounds: int | None = None,
    fewest_rounds: int = FEWEST_ROUNDS,
    options: SessionOptions | None = None,
    progress: Progress | None = None,
    take_outputs: TakeOutputs | None = None,
    take_layers: TakeLayers | None = None,
    layers_from: int = 0,
    listener: MeasurementListener | None = None,
) -> tuple[list[Measurement], list[Comparison | None]]:
    """Times model files against the first of them. A failing model raises nothing.

    A candidate's block counts as a hang after thirty seconds, or twenty times the baseline's block
    if that is longer.

    Args:
        worker: The worker that runs the models.
        paths: The baseline and its candidates; all take the same inputs.
        feeds: The inputs.
        budget_s: Maximum seconds of timed runs per candidate; clear differences take less.
        runs: Minimum timed runs per model, instead of a budget; all of them are made.
        min_time_s: Minimum seconds of timed runs per model; all of them are made.
        rounds: Blocks of each candidate; fewer if they don't fit into the budget.
        fewest_rounds: Minimum number of rounds, whatever the budget.
        options: How to open the models.
        progress: Called after each round with the rounds done and planned.
        take_outputs: Called with the number and the outputs of each model that was timed.
        take_layers: Called with the number and the layers of each model that was timed.
        layers_from: Number of the first model whose layers are needed.
        listener: Called for each round and each failure.

    Returns:
        One measurement per file, and one comparison per candidate: None where the candidate or
        the baseline failed.

    Raises:
        WorkerFailure: If the worker's host is gone.
    """
    if runs is not None or min_time_s is not None:
        budget_s = math.inf

    def plan(latencies_ms: Sequence[float], left_s: float, overhead_ms: float) -> Plan:
        least = runs
        if min_time_s is not None:
            least = max(runs or 1, math.ceil(min_time_s * 1000.0 / min(latencies_ms)))
        return plan_turns(latencies_ms, left_s, least, rounds, overhead_ms, fewest_rounds)

    with worker.stored(feeds) as stored:
        comparing = _Comparing(worker, [os.fspath(path) for path in paths], stored, options)
        while present := [i for i in range(len(paths)) if i not in comparing.errors]:
            try:
                blocks, comparisons = comparing.attempt(present, budget_s, plan, progress, listener)
                for index in present:
                    if take_outputs is not None:
                        take_outputs(index, comparing.run(index))
                    if take_layers is not None and index >= layers_from:
                        take_layers(index, comparing.layers(index))
            except WorkerFailure as failure:
                if failure.kind is FailureKind.HOST:
                    raise
                index, error = comparing.current, str(failure)
                comparing.errors[index] = error
                if listener is not None:
                    refused = failure.kind is FailureKind.ERROR
                    listener.saw_failure(index, error, refused=refused)
            else:
                break
            finally:
                comparing.release()
    timed = dict(zip(present, blocks, strict=True)) if present else {}
    compared: dict[int, Comparison] = {}
    if present and present[0] == 0:
        compared = dict(zip(present[1:], comparisons, strict=True))
    measurements = [comparing.measurement(i, timed.get(i, [])) for i in range(len(paths))]
    return measurements, [compared.get(i) for i in range(1, len(paths))]


@dataclass
class _Spent:
    """The engine's own seconds on one model."""

    build_s: float = 0.0
    timing_s: float = 0.0


@dataclass
class _Comparing:
    """One comparison; it is attempted again without the models that failed."""

    worker: Worker
    paths: list[str]
    feeds: StoredFeeds
    options: SessionOptions | None
    errors: dict[int, str] = field(default_factory=dict, init=False)
    spent: defaultdict[int, _Spent] = field(default_factory=lambda: defaultdict(_Spent), init=False)
    models: dict[int, OpenModel] = field(default_factory=dict, init=False)
    limit_s: float | None = field(default=None, init=False)
    current: int = field(default=0, init=False)
    """Number of the model being worked on."""

    def attempt(
        self,
        present: list[int],
        budget_s: float,
        plan_for: Callable[[Sequence[float], float, float], Plan],
        progress: Progress | None,
        listener: MeasurementListener | None,
    ) -> tuple[list[Blocks], list[Comparison]]:
        """Open and time the models that have not failed yet."""
        self.limit_s = None
        for index in present:
            self._open(index)
        before = replace(self.worker.totals)

        def contention() -> float:
            spent_s = self.worker.totals.timing_s - before.timing_s
            waited_s = self.worker.totals.contended_s - before.contended_s
            return waited_s / spent_s if spent_s > 0.0 else 0.0

        end = time.monotonic() + budget_s * max(1, len(present) - 1)
        latencies_ms: list[float] = []
        overheads_ms: list[float] = []
        for index in present:
            before_s = self.worker.totals.timing_s
            pilot = self._block(index, _PILOT_RUNS)
            spent_s = self.worker.totals.timing_s - before_s
            overheads_ms.append(spent_s * 1000.0 - sum(pilot))
            latencies_ms.append(statistics.median(pilot[_PILOT_DROP:]))
            if index == present[0]:
                self._limit_blocks(spent_s)
        overhead_ms = min(overheads_ms)
        if overhead_ms <= _LEAST_OVERHEAD_MS:
            overhead_ms = 0.0
        plan = plan_for(latencies_ms, end - time.monotonic(), overhead_ms)
        self._limit_blocks((plan.shapes[0].block_ms + overhead_ms) / 1000.0)
        on_round = None
        if listener is not None:
            on_round = functools.partial(listener.saw_round, tuple(present[1:]))
        return take_turns(
            lambda model, count: self._block(present[model], count),
            plan,
            progress,
            # Other processes may leave the engine less time than its own samples show.
            time_is_up=lambda: time.monotonic() > end,
            on_round=on_round,
            contention=contention,
        )

    def run(self, index: int) -> Outputs:
        """Return a model's outputs."""
        self.current = index
        return self.worker.run(self.models[index], self.feeds, timeout_s=self.limit_s)

    def layers(self, index: int) -> list[LayerTime]:
        """Return a model's layers; a model does not fail because they can't be listed.

        An engine that crashed or hung twice on this request is not asked again.
        """
        if self.worker.totals.deaths_by_layers >= _MOST_DEATHS:
            return []
        try:
            return self.worker.layers(self.models[index], _LAYER_RUNS, timeout_s=self.limit_s)
        except WorkerFailure:
            return []

    def release(self) -> None:
        """Close the open models."""
        for model in self.models.values():
            with contextlib.suppress(WorkerFailure):
                self.worker.release(model)
        self.models.clear()

    def measurement(self, index: int, blocks: Blocks) -> Measurement:
        """Return the measurement of a model."""
        spent = self.spent[index]
        return Measurement(tuple(blocks), self.errors.get(index), spent.build_s, spent.timing_s)

    def _open(self, index: int) -> None:
        self.current = index
        self.models[index] = model = self.worker.open(self.paths[index], self.options)
        self.spent[index].build_s += model.build_s + self.worker.feed(model, self.feeds)

    def _limit_blocks(self, baseline_s: float) -> None:
        self.limit_s = max(_SHORTEST_LIMIT_S, _TIMES_BASELINE * baseline_s)

    def _block(self, index: int, runs: int) -> list[float]:
        self.current = index
        before_s = self.worker.totals.timing_s
        samples = self.worker.time(self.models[index], runs, timeout_s=self.limit_s)
        self.spent[index].timing_s += self.worker.totals.timing_s - before_s
        error = Measurement((tuple(samples),)).error
        if len(samples) != runs:
            error = f"the engine returned {len(samples)} samples of {runs}"
        if error is not None:
            raise WorkerFailure(error, FailureKind.ERROR)
        return samples


@dataclass(frozen=True)
class Allowance:
    """The time limits of a comparison in several processes.

    Attributes:
        timing_s: Seconds of timed runs per candidate, in all processes together.
        reopening_s: Additional seconds for opening the files again.
        left_s: Returns the seconds left until everything must be finished.
        baseline_ratio: Latency ratio of two openings of the baseline, used where there is no time
            to open the files again.
        is_real: Whether runs take the time that the engine reports; if not, all rounds are made.
    """

    timing_s: float
    reopening_s: float = 30.0
    left_s: Callable[[], float] = lambda: math.inf
    baseline_ratio: float = 1.0
    is_real: bool = True


@dataclass(frozen=True)
class Reopened:
    """A file compared with the first one in several processes.

    Attributes:
        latency_ms: Its typical latency.
        error: Why it could not be timed; None if it could.
        comparison: Comparison with the first file; None for that file itself, and if it could not
            be timed.
        log_ratios: The log ratio from each process.
    """

    latency_ms: float
    error: str | None = None
    comparison: Comparison | None = None
    log_ratios: tuple[float, ...] = ()


def compare_reopened(
    pool: WorkerPool,
    paths: Sequence[str | os.PathLike[str]],
    feeds: Feeds,
    allowance: Allowance,
    told: Callable[[int], None] = lambda _: None,
) -> list[Reopened]:
    """Time files against the first of them, interleaved, in fresh processes.

    Each worker starts a process for itself, so that several of them are at it side by side. A
    candidate that fails in one of the processes has failed. If the baseline fails, although it ran
    before, that process is repeated once.

    Args:
        pool: The workers.
        paths: The baseline and its candidates.
        feeds: The inputs.
        allowance: The time limits.
        told: Called with the number of processes that have ended, before more are started.
    """
    errors: dict[int, str] = {}
    found: list[dict[int, tuple[Measurement, Comparison | None]]] = []
    wanted, failures = MOST_OPENINGS, 0
    while len(found) < wanted and len(errors) < len(paths) - 1:
        began, done = time.monotonic(), len(found)
        told(done)
        present = [index for index in range(len(paths)) if index not in errors]
        compare = functools.partial(
            _compare_once, paths=[paths[index] for index in present], feeds=feeds,
            allowance=allowance, again=bool(done),
        )  # fmt: skip
        first = done + failures
        jobs = [
            Job(f"final, process {number + 1}", functools.partial(compare, opening=number))
            for number in range(first, first + min(len(pool), wanted - done))
        ]
        for measured, compared in pool.run(jobs):
            if measured[0].error is not None:
                failures += 1
                errors |= {0: measured[0].error} if failures > 1 else {}
                continue
            errors |= {i: m.error for i, m in zip(present, measured, strict=True) if m.error}
            each = zip(measured, [None, *compared], strict=True)
            found.append(dict(zip(present, each, strict=True)))
        if 0 in errors:
            break
        took_s = time.monotonic() - began
        if found and not done:
            wanted = _affordable(allowance, took_s, len(paths) - 1, len(jobs))
        left = [index for index in present[1:] if index not in errors]
        if _agree([_comparisons(found, index) for index in left]) or allowance.left_s() < took_s:
            break
    reopened = []
    for index in range(len(paths)):
        if error := errors.get(index) or errors.get(0):
            reopened.append(Reopened(math.inf, error))
            continue
        latency_ms = statistics.median(each[index][0].latency_ms for each in found)
        comparisons = _comparisons(found, index)
        combined = combine(comparisons, allowance.baseline_ratio) if comparisons else None
        reopened.append(Reopened(latency_ms, None, combined, _log_ratios(comparisons)))
    return reopened


def _compare_once(
    worker: Worker,
    *,
    opening: int,
    paths: Sequence[str | os.PathLike[str]],
    feeds: Feeds,
    allowance: Allowance,
    again: bool,
) -> tuple[list[Measurement], list[Comparison | None]]:
    worker.restart(opening)
    timing_s = allowance.timing_s / MOST_OPENINGS
    fewest = _FEWEST_ROUNDS_AGAIN if again else FEWEST_ROUNDS
    return compare_files(
        worker,
        paths,
        feeds,
        rounds=max(fewest, math.ceil(_MOST_ROUNDS_PER_S * timing_s)),
        fewest_rounds=fewest,
        budget_s=timing_s if allowance.is_real else math.inf,
    )


def _comparisons(
    found: Sequence[Mapping[int, tuple[Measurement, Comparison | None]]], index: int
) -> list[Comparison]:
    """Return each process's comparison of a file with the baseline; none for the baseline."""
    return [compared for each in found if (compared := each[index][1]) is not None]


def _log_ratios(found: Sequence[Comparison]) -> tuple[float, ...]:
    return tuple(math.log(each.ratio) for each in found)


def _affordable(allowance: Allowance, took_s: float, candidates: int, at_once: int) -> int:
    """Return how many openings fit in the time, from the overhead of the first ones."""
    more_s = max(took_s - allowance.timing_s / MOST_OPENINGS * candidates, 1e-3)
    room_s = min(allowance.reopening_s, allowance.left_s())
    wanted = min(MOST_OPENINGS, at_once * (1 + math.floor(room_s / more_s)))
    return wanted if wanted >= FEWEST_OPENINGS else 1


def _agree(comparisons: Sequence[Sequence[Comparison]]) -> bool:
    return all(
        len(found) >= FEWEST_OPENINGS and statistics.stdev(_log_ratios(found)) <= _AGREEING
        for found in comparisons
    )


def combine(found: Sequence[Comparison], baseline_ratio: float = 1.0) -> Comparison:
    """Combine comparisons of the same files from several processes.

    Args:
        found: One comparison per process.
        baseline_ratio: Latency ratio of two openings of one file, used where there are too few
            processes.
    """
    log_ratios = _log_ratios(found)
    contention = statistics.fmean(each.contention for each in found)
    middle = statistics.fmean(log_ratios)
    half_width = _half_width(log_ratios)
    if len(found) < FEWEST_OPENINGS:
        half_width = math.hypot(_inside(found), _assumed(baseline_ratio))
    elif contention:
        # An effect of a busy machine that is common to all of them does not show in their
        # differences.
        half_width = math.hypot(half_width, least_half_width(contention))
    return replace(
        found[0],
        ratio=math.exp(middle),
        low=math.exp(middle - half_width),
        high=math.exp(middle + half_width) if math.isfinite(half_width) else math.inf,
        confidence=_CONFIDENCE,
        pairs=sum(each.pairs for each in found),
        contention=contention,
        openings=len(found),
    )


def is_faster(log_ratios: Sequence[float], other: Sequence[float]) -> bool:
    """Whether one of two files interleaved in the same processes is significantly faster.

    Args:
        log_ratios: Its log ratio over the baseline from each process.
        other: Those of the other file.
    """
    differences = [one - two for one, two in zip(log_ratios, other, strict=True)]
    if len(differences) < FEWEST_OPENINGS:
        return False
    return statistics.fmean(differences) > _half_width(differences)


def _half_width(log_ratios: Sequence[float]) -> float:
    """Return half of the interval that follows from the differences between processes."""
    count = len(log_ratios)
    if count < FEWEST_OPENINGS:
        return math.inf
    error = statistics.stdev(log_ratios) / math.sqrt(count)
    return max(_LEAST_HALF_WIDTH, _STUDENT[min(count - 1, max(_STUDENT))] * error)


def _inside(found: Sequence[Comparison]) -> float:
    """Return half of the widest interval within one process."""
    return max(
        math.log(each.high / each.low) / 2.0 if each.low > 0.0 and math.isfinite(each.high)
        else math.inf
        for each in found
    )  # fmt: skip


def _assumed(baseline_ratio: float) -> float:
    """Return how far an unknown opening may shift a ratio: a convention, updated by observation."""
    freedom = _WORTH + 1
    variance = (_WORTH * _ASSUMED**2 + math.log(baseline_ratio) ** 2) / freedom
    return _STUDENT[freedom] * math.sqrt(variance)
