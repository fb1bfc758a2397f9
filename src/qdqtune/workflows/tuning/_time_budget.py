"""How thorough a run is, how it keeps time and reports steps, and what its budget has time for."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from qdqtune.config import Callback
from qdqtune.engines._comparison import MOST_OPENINGS
from qdqtune.engines._timing import FEWEST_ROUNDS, BlockShape
from qdqtune.engines._worker import Worker
from qdqtune.records._accuracy import METRIC, SQNR
from qdqtune.records._tuning import Seconds, TuneEvent
from qdqtune.search._config import preset_for_schemes
from qdqtune.search.strategies._strategy import Effort, Limits

_logger = logging.getLogger(__name__)

SHOWN_EVERY_S = 2.0
"""How often a long step is reported."""
TOLD_AHEAD_S = 2.0
"""A step that takes longer is reported before it begins."""

_RUNS_OF_A_BLOCK = 2  # of a slow model; a fast one has more
_NO_LIMIT_S = 3600.0
# What one candidate's comparison may take of a budget: some twenty candidates are worth a search.
_PART_OF_BUDGET = {Effort.SCREEN: 0.02, Effort.CONFIRM: 0.04}
_Number = TypeVar("_Number", int, float)
# The runs of each model before a comparison begins.
_PILOT_RUNS = 4
# The files that the last comparison has beside the baseline: the result and what it must beat.
_FINALS = 2
# What is reserved of the budget for the last comparison of each; it may take more that is left.
_PART_FOR_FINAL = 0.1
# What opening the files of the last comparison again may take: a part of what the run took so far,
# but always this much; of a budget, no more than that part of it is reserved.
_PART_FOR_REOPENING = 0.2
_LEAST_FOR_REOPENING_S = 30.0
_BUDGET_FOR_REOPENING = 0.1
# What a repair of the accuracy may take of the budget.
_PART_FOR_REPAIR = 0.25
# What calibration may take of the time that is left beside a single candidate and the end.
_PART_FOR_CALIBRATION = 0.3
_ROUNDED_UP = 1.15


@dataclass(frozen=True)
class Preset:
    """What a name like ``quick`` stands for.

    Attributes:
        rounds: Blocks of each candidate, by effort.
        seconds: Most seconds of timed runs per candidate, by effort: slow models get fewer blocks.
        sweeps: How many fruitless steps the search takes before it stops.
        benchmarks: Candidates, at most: a number, and as many more per group.
        final_s: Seconds for the last comparison.
        assemblies: Candidates in subgraph mode, at most.
    """

    rounds: Mapping[Effort, int]
    seconds: Mapping[Effort, float]
    sweeps: int
    benchmarks: tuple[int, float]
    final_s: float
    assemblies: int

    def limits(
        self, groups: int, patterns: int, most: int | None = None, schemes: int | None = None
    ) -> Limits:
        """The limits for a search.

        Whoever asks for more schemes than the preset has wants a longer search, too: without
        that, it would end where the preset's does.

        Args:
            groups: How many there are to choose from.
            patterns: How many patterns they belong to.
            most: Candidates that the user allows; None is what `schemes` comes to.
            schemes: Candidates that the user allows for each pattern; None is the preset's number.
        """
        fixed, per_group = self.benchmarks
        allowed = fixed + round(per_group * groups)
        if schemes is None:
            return Limits(sweeps=self.sweeps, benchmarks=allowed if most is None else most)
        patience = max(self.sweeps, PRESETS[preset_for_schemes(schemes)].sweeps)
        by_schemes = schemes * max(1, patterns)
        return Limits(sweeps=patience, benchmarks=by_schemes if most is None else most)

    def within(self, budget_s: float | None) -> Preset:
        """The preset for a run that may take so long: no comparison may take much of it.

        Args:
            budget_s: Seconds for everything; None has no end.
        """
        if budget_s is None:
            return self
        return replace(
            self,
            seconds={
                effort: min(seconds, _PART_OF_BUDGET[effort] * budget_s)
                for effort, seconds in self.seconds.items()
            },
        )

    def with_runs(self, timing_runs: int) -> Preset:
        """The preset with as many timed runs of a candidate, at least; more where it is close."""
        rounds = max(FEWEST_ROUNDS, math.ceil(timing_runs / _RUNS_OF_A_BLOCK))
        return replace(
            self,
            rounds=_by_effort(rounds, 2 * rounds),
            seconds=_by_effort(_NO_LIMIT_S, _NO_LIMIT_S),
        )


def _by_effort(screen: _Number, confirm: _Number) -> dict[Effort, _Number]:
    return {Effort.SCREEN: screen, Effort.CONFIRM: confirm}


PRESETS: dict[str, Preset] = {
    "quick": Preset(_by_effort(10, 24), _by_effort(1.5, 3.0), 1, (36, 0.6), 4.0, 12),
    "default": Preset(_by_effort(14, 40), _by_effort(3.0, 8.0), 2, (60, 2.0), 8.0, 16),
    "extensive": Preset(_by_effort(30, 100), _by_effort(8.0, 30.0), 5, (100, 8.0), 30.0, 30),
}


class ProgressReporter:
    """Keeps time and reports every step.

    Args:
        callbacks: Called with every event.
        budget_s: Seconds that the run may take; None has no end.

    Attributes:
        workers: Processes whose time is not our own.
    """

    def __init__(self, callbacks: Sequence[Callback], budget_s: float | None) -> None:
        self.workers: list[Worker] = []
        self._callbacks = callbacks
        self._budget_s = budget_s
        self._start = time.monotonic()
        self._search_start: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """What is left of the budget: below 0 if it is over, infinite without one."""
        return math.inf if self._budget_s is None else self._budget_s - self.elapsed_s

    def search_begins(self) -> None:
        """From here on, benchmarks tell how long the rest will take."""
        self._search_start = time.monotonic()

    def tell(
        self,
        stage: str,
        message: str,
        *,
        benchmarks: int = 0,
        known: int = 0,
        planned: int | None = None,
        speedup: float = 1.0,
        rest_s: float = 0.0,
        eta_s: float | None = None,
    ) -> None:
        """Report a step.

        Args:
            stage: What the run is at.
            message: What happened.
            benchmarks: Candidates timed so far.
            known: Those that earlier runs had timed.
            planned: Candidates that there will be.
            speedup: Of the best so far.
            rest_s: Seconds that what follows the search will take.
            eta_s: Seconds left of a step that is no part of the search.
        """
        if self._search_start is not None and planned and benchmarks:
            each_s = (time.monotonic() - self._search_start) / benchmarks
            eta_s = max(0, planned - known - benchmarks) * each_s + rest_s
            eta_s = min(eta_s, max(0.0, self.left_s))
        event = TuneEvent(
            stage, message, benchmarks, planned, speedup, self.elapsed_s, eta_s, known
        )
        _logger.info("%s: %s", stage, message)
        for callback in self._callbacks:
            callback(event)

    def progress(self, stage: str) -> Callable[[str, int, int | None], None]:
        """A function that reports how far a long step is, at most every few seconds.

        Args:
            stage: What the run is at.

        Returns:
            A function that takes what is being done, how much of it is done, and how much there
            is, if that is known.
        """
        began: dict[str, float] = {}
        shown = time.monotonic()

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal shown
            now = time.monotonic()
            since = began.setdefault(what, now)
            if now - shown < SHOWN_EVERY_S:
                return
            shown = now
            eta_s = (now - since) / done * (total - done) if total and done else None
            of = f"{done} of {total}" if total else f"{done}"
            self.tell(stage, f"{what}: {of}", eta_s=eta_s)

        return show

    def seconds(self) -> Seconds:
        """Where the time went so far."""
        total = self.elapsed_s
        return Seconds(
            total=total,
            building=sum(worker.totals.building_s for worker in self.workers),
            timing=sum(worker.totals.timing_s for worker in self.workers),
            own=max(0.0, total - sum(worker.totals.waited_s for worker in self.workers)),
        )


class TimeBudget:
    """Foresees how long the steps of a run take.

    Args:
        left_s: Seconds that are left of the budget; infinite without one.
        preset: How thorough to be.
        budget_s: The whole budget; None without one.

    Attributes:
        start_s: Seconds that the engine took to start.
        write_s: Seconds that it took to write a candidate, and what comes with it.
        accuracy_s: The longest that a measurement of accuracy of each kind took so far.
        ranges: In how many ways ranges were found: the result is evaluated with each.
        evaluated: Samples that it is evaluated on.
        repair_s: Seconds that the accuracy of the best so far takes to be repaired.
    """

    def __init__(self, left_s: Callable[[], float], preset: Preset, budget_s: float | None) -> None:
        self.left_s = left_s
        self.start_s = 0.0
        self.write_s = 0.0
        self.accuracy_s: dict[str, float] = {}
        self.ranges = 1
        self.evaluated = 1
        self.repair_s = 0.0
        self._preset = preset
        self._budget_s = budget_s
        self._build_s = 0.0
        self._latency_s = 0.0
        self._slower = 1.0

    def saw_baseline(self, build_s: float, latency_ms: float) -> None:
        """Take in what the float model takes to be built, and to run: 0 if it is not really run."""
        self._build_s = max(self._build_s, build_s)
        self._latency_s = latency_ms / 1000.0

    def saw_accuracy(self, measure: str, seconds: float) -> None:
        """Take in what a measurement of accuracy of some kind took."""
        self.accuracy_s[measure] = max(seconds, self.accuracy_s.get(measure, 0.0))

    def saw_trial(self, candidates: int, effort: Effort, seconds: float) -> None:
        """Take in what a comparison took; what comes is expected to be as slow."""
        expected_s = self._comparison_s(candidates, effort)
        self._slower = max(1.0, seconds / expected_s) if expected_s else 1.0

    def trial_s(self, candidates: int, effort: Effort) -> float:
        """What it takes to build candidates and compare them with a reference."""
        return self._slower * self._comparison_s(candidates, effort)

    def fitting(self, candidates: int, effort: Effort, *, least: bool = False) -> int:
        """How many of these candidates can be compared, with enough time left for the end.

        Args:
            candidates: How many are wanted.
            effort: How thoroughly.
            least: Whether the shortest end will do.
        """
        room_s = self.left_s() - self.end_s(least=least)
        counts = range(candidates, 0, -1)
        return next((n for n in counts if self.trial_s(n, effort) <= room_s), 0)

    def has_time_for(self, seconds: float) -> bool:
        """Whether something else can be done before the candidates and the end."""
        return seconds + self.trial_s(1, Effort.CONFIRM) + self.end_s() <= self.left_s()

    @property
    def least_s(self) -> float:
        """What a single candidate and the end take, as far as that is known."""
        return self.trial_s(1, Effort.CONFIRM) + self.end_s(least=True)

    def needed(self, elapsed_s: float, also_s: float = 0.0) -> str:
        """Says how long a budget has to be for a single candidate.

        Args:
            elapsed_s: What the run took so far.
            also_s: Seconds that are needed before the candidate.
        """
        # What was foreseen is rounded up, so that a run with it is not too short again.
        needed_s = math.ceil(_ROUNDED_UP * (elapsed_s + also_s + self.least_s))
        return (
            f"--budget {self._budget_s or 0.0:g}s is too short for this model: timing the baseline "
            f"and checking a result take about {needed_s} s"
        )

    @property
    def calibration_s(self) -> float:
        """What calibration may take, so that there is time to search for something."""
        return _PART_FOR_CALIBRATION * (self.left_s() - self.least_s)

    def end_s(self, *, least: bool = False) -> float:
        """What evaluating, writing and timing the result will take.

        Args:
            least: The least that it can do with: no repair, and the shortest last comparison.
        """
        # Writing happens for the result, for the staged copy, and for how it grew together.
        evaluated_s = self.evaluation_s * self.ranges + self.accuracy_s.get(METRIC, 0.0)
        fixed_s = evaluated_s + self._last_builds_s(_FINALS) + 3 * self.write_s
        if least:
            return fixed_s + self._shortest_s(_FINALS)
        final_s, reopening_s = self._preset.final_s, self._all_reopening_s(_FINALS)
        if self._budget_s is not None:
            final_s = min(final_s, _PART_FOR_FINAL * self._budget_s)
            reopening_s = min(reopening_s, _BUDGET_FOR_REOPENING * self._budget_s)
        return fixed_s + _FINALS * final_s + reopening_s + self.repair_s

    @property
    def evaluation_s(self) -> float:
        """What it takes to compare the outputs of a candidate with the float model's."""
        if SQNR in self.accuracy_s:
            return self.accuracy_s[SQNR]
        return 2 * (self._build_s + self.evaluated * self._latency_s)  # the float model's, too

    def foresee_repair(self, parts: int) -> None:
        """Reserve time for leaving float what is not accurate enough.

        Args:
            parts: Of how many parts the choice is.
        """
        steps = math.ceil(math.log2(parts + 1))
        check_s = self.evaluation_s + self.accuracy_s.get(METRIC, 0.0)
        if self._budget_s is not None:
            most_s = _PART_FOR_REPAIR * self._budget_s
            self.repair_s = min(parts * self.evaluation_s + steps * check_s, most_s)

    def repair_left_s(self) -> float:
        """What a repair may still take, so that its result can be timed."""
        last_s = self._last_builds_s(_FINALS) + self._shortest_s(_FINALS) + 3 * self.write_s
        return self.left_s() - last_s

    def final_s(self, files: int) -> float:
        """Seconds for the last comparison, per file: what is left, up to the preset's own."""
        left_s = self.left_s() - self._last_builds_s(files) - 2 * self.write_s
        if self._budget_s is not None:
            reserved_s = min(_BUDGET_FOR_REOPENING * self._budget_s, left_s / 2)
            left_s -= min(self._all_reopening_s(files), reserved_s)
        return max(0.0, min(self._preset.final_s, left_s / files))

    def reopening_s(self, files: int, spent_s: float) -> float:
        """Seconds that opening the files of the last comparison again may take, all in all.

        Args:
            files: How many there are beside the baseline.
            spent_s: What the run took so far.
        """
        wanted_s = max(_LEAST_FOR_REOPENING_S, _PART_FOR_REOPENING * spent_s)
        left_s = self.left_s() - self._last_builds_s(files) - 2 * self.write_s
        return max(0.0, min(wanted_s, left_s - files * self.final_s(files)))

    def _all_reopening_s(self, files: int) -> float:
        """What it takes to open the files as often as is wanted, beside the first time."""
        return (MOST_OPENINGS - 1) * (self._last_builds_s(files) + _PILOT_RUNS * self._latency_s)

    def _last_builds_s(self, files: int) -> float:
        return self.start_s + (1 + files) * self._build_s

    def _comparison_s(self, candidates: int, effort: Effort) -> float:
        models = 1 + candidates
        rounds_s = self._preset.rounds[effort] * models * self._block_s
        timing_s = min(candidates * self._preset.seconds[effort], rounds_s)
        return models * self._build_s + max(timing_s, self._shortest_s(candidates))

    def _shortest_s(self, candidates: int) -> float:
        """What the fewest rounds take that say anything."""
        pilot_s = _PILOT_RUNS * self._latency_s
        return (1 + candidates) * (FEWEST_ROUNDS * self._block_s + pilot_s)

    @property
    def _block_s(self) -> float:
        if not self._latency_s:
            return 0.0
        return BlockShape.of(1000.0 * self._latency_s).block_ms / 1000.0
