"""How thorough a run is, and what its budget allows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from qdqtune.engines._comparison import MOST_OPENINGS
from qdqtune.engines._timing import FEWEST_ROUNDS, BlockShape
from qdqtune.records._accuracy import METRIC, SQNR
from qdqtune.search._config import preset_for_schemes
from qdqtune.search.strategies._strategy import Effort, Limits

TOLD_AHEAD_S = 2.0
"""A step that takes longer than this is reported before it begins."""

_RUNS_OF_A_BLOCK = 2  # for a slow model; a fast one has more
_NO_LIMIT_S = 3600.0
# Fraction of a budget for one candidate's comparison: a search should have some twenty candidates.
_PART_OF_BUDGET = {Effort.SCREEN: 0.02, Effort.CONFIRM: 0.04}
_Number = TypeVar("_Number", int, float)
# Runs of each model before a comparison begins.
_PILOT_RUNS = 4
# Files in the last comparison besides the baseline: the result and its strongest rival.
_FINALS = 2
# Fraction of the budget reserved for the last comparison of each; it may use more if time is left.
_PART_FOR_FINAL = 0.1
# For opening the files of the last comparison again: a fraction of the run's time so far, but at
# least this much; and the fraction of a budget that is reserved for it.
_PART_FOR_REOPENING = 0.2
_LEAST_FOR_REOPENING_S = 30.0
# For further models in the last comparison: a fraction of the run's time, but at least this much.
_PART_FOR_FRONT, _LEAST_FOR_FRONT_S = 0.1, 30.0
_BUDGET_FOR_REOPENING = 0.1
# Fraction of the budget for an accuracy repair.
_PART_FOR_REPAIR = 0.25
# Fraction for whole models, at most, of the time that subgraph mode has left for its search.
_PART_FOR_WHOLE = 0.5
# Fraction for calibration of the time left after a single candidate and the end.
_PART_FOR_CALIBRATION = 0.3
_ROUNDED_UP = 1.15
# What takes this many times as long as opening a model that was built before is a build.
_MOST_FOR_OPENING = 2.0
# Fraction of the candidates that suffices if a cache knows the model: many searches end early, so
# that it should be less than a quarter of the maximum.
_PART_TO_CONFIRM = 5


@dataclass(frozen=True)
class Preset:
    """The settings behind a name like ``quick``.

    Attributes:
        rounds: Blocks of each candidate, by effort.
        seconds: Maximum seconds of timed runs per candidate, by effort: slow models get fewer
            blocks.
        sweeps: Number of fruitless steps after which the search stops.
        benchmarks: Maximum number of candidates: a constant, and an addition per group.
        final_s: Seconds for the last comparison.
        assemblies: Maximum number of candidates in subgraph mode.
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
        """Return the limits for a search.

        A request for more schemes than the preset has also makes the search more persistent;
        otherwise it would end where the preset's does.

        Args:
            groups: Number of groups to choose from.
            patterns: Number of patterns they belong to.
            most: The user's limit on candidates; None to use `schemes`.
            schemes: The user's limit on candidates per pattern; None for the preset's number.
        """
        fixed, per_group = self.benchmarks
        allowed = fixed + round(per_group * groups)
        usual = Limits(
            self.sweeps, allowed if most is None else most, confirming=allowed // _PART_TO_CONFIRM
        )
        if schemes is None:
            return usual
        patience = max(self.sweeps, PRESETS[preset_for_schemes(schemes)].sweeps)
        by_schemes = schemes * max(1, patterns)
        return replace(usual, sweeps=patience, benchmarks=by_schemes if most is None else most)

    def within(self, budget_s: float | None) -> Preset:
        """Return the preset for a limited run, in which no comparison may take a large part.

        Args:
            budget_s: Seconds for everything; None for no limit.
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
        """Return the preset with at least this many timed runs, and twice that to confirm."""
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


class _OpeningTimes(NamedTuple):
    """Seconds to open a model for the first time, and again; and those that candidates took."""

    first: float = 0.0
    again: float = 0.0
    candidates: tuple[float, ...] = ()

    @property
    def candidate(self) -> float:
        """Seconds for a candidate: as long as those before, or as the float model."""
        if not self.candidates:
            return self.first
        return max(self.candidates[-1], statistics.fmean(self.candidates))


class TimeBudget:
    """Predicts how long the steps of a run take.

    Args:
        left_s: Returns the seconds left of the budget; infinite without one.
        preset: How thorough the run is.
        budget_s: The whole budget; None without one.

    Attributes:
        start_s: Seconds that the engine took to start.
        write_s: Seconds that it took to write a candidate and everything with it.
        accuracy_s: The longest accuracy measurement of each kind so far.
        ranges: Number of range methods: the result is evaluated with each.
        evaluated: Number of samples that it is evaluated on.
        repair_s: Expected seconds of an accuracy repair of the best so far.
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
        self._opening_s = _OpeningTimes()
        self._latency_s = 0.0
        self._slower = 1.0

    def saw_baseline(self, build_s: float, latency_ms: float, again_s: float | None = None) -> None:
        """Record what the float model takes.

        Args:
            build_s: Seconds to build it.
            latency_ms: Its latency; 0 if it isn't really run.
            again_s: Seconds to open it when it was built before; None if it is built again then.
        """
        build_s = max(self._opening_s.first, build_s)
        again_s = build_s if again_s is None else again_s
        self._opening_s = self._opening_s._replace(first=build_s, again=again_s)
        self._latency_s = latency_ms / 1000.0

    def saw_build(self, build_s: float) -> None:
        """Record what a candidate took to build: the first build of a process may take longer."""
        if build_s > _MOST_FOR_OPENING * self._opening_s.again:
            candidates = (*self._opening_s.candidates, build_s)
            self._opening_s = self._opening_s._replace(candidates=candidates)

    def saw_accuracy(self, measure: str, seconds: float) -> None:
        """Record the duration of an accuracy measurement of some kind."""
        self.accuracy_s[measure] = max(seconds, self.accuracy_s.get(measure, 0.0))

    def saw_trial(self, candidates: int, effort: Effort, seconds: float) -> None:
        """Record the duration of a comparison; later ones are expected to be as slow."""
        expected_s = self._comparison_s(candidates, effort)
        self._slower = max(1.0, seconds / expected_s) if expected_s else 1.0

    def trial_s(self, candidates: int, effort: Effort) -> float:
        """Return the expected seconds for building and comparing candidates with a reference."""
        return self._slower * self._comparison_s(candidates, effort)

    @property
    def build_s(self) -> float:
        """Seconds that the first build of the model took."""
        return self._opening_s.first

    @property
    def open_s(self) -> float:
        """Seconds to open a model that was built before."""
        return self._opening_s.again

    def subgraphs_s(self, candidates: int) -> float:
        """Return the seconds that timing subgraphs may take; infinite without a budget.

        Args:
            candidates: Whole models that are to be tried afterwards. Half of the time is kept for
                them if they need it, and enough for one in any case.
        """
        room_s = self.left_s() - self.end_s()
        whole_s = min(self.trial_s(candidates, Effort.CONFIRM), _PART_FOR_WHOLE * room_s)
        return room_s - max(whole_s, self.trial_s(1, Effort.CONFIRM))

    @property
    def noise_check_s(self) -> float:
        """Expected seconds for timing the baseline against itself."""
        return self._slower * self._comparison_s(1, Effort.SCREEN, self._opening_s.again)

    def run_s(self, candidates: int) -> float:
        """Return the expected seconds of a whole run that tries this many candidates."""
        # The noise, and calibration, which runs the model on as many samples as an evaluation does.
        first_s = self.start_s + self.noise_check_s + self.evaluation_s
        all_s = first_s + self.trial_s(candidates, Effort.SCREEN) + self.end_s()
        return min(all_s, self.left_s())

    def fitting(self, candidates: int, effort: Effort, *, least: bool = False) -> int:
        """Return how many of these candidates can be compared, with enough time left for the end.

        Args:
            candidates: Number of candidates wanted.
            effort: The effort of the comparison.
            least: Whether the shortest possible end is sufficient.
        """
        room_s = self.left_s() - self.end_s(least=least)
        counts = range(candidates, 0, -1)
        return next((n for n in counts if self.trial_s(n, effort) <= room_s), 0)

    def has_time_for(self, seconds: float) -> bool:
        """Whether there is time for something else before a candidate and the end."""
        return seconds + self.trial_s(1, Effort.CONFIRM) + self.end_s() <= self.left_s()

    @property
    def least_s(self) -> float:
        """Expected seconds of a single candidate and the end, as far as known."""
        return self.trial_s(1, Effort.CONFIRM) + self.end_s(least=True)

    def needed(self, elapsed_s: float, also_s: float = 0.0) -> str:
        """Describe how long a budget must be for a single candidate.

        Args:
            elapsed_s: Seconds that the run has taken so far.
            also_s: Seconds needed before the candidate.
        """
        # The estimate is rounded up, so that a run with it is not too short again.
        needed_s = math.ceil(_ROUNDED_UP * (elapsed_s + also_s + self.least_s))
        return (
            f"--budget {self._budget_s or 0.0:g}s is too short for this model: timing the baseline "
            f"and checking a result take about {needed_s} s"
        )

    @property
    def calibration_s(self) -> float:
        """Time limit for calibration that leaves time for a search."""
        return _PART_FOR_CALIBRATION * (self.left_s() - self.least_s)

    def end_s(self, *, least: bool = False) -> float:
        """Return the expected seconds for evaluating, writing and timing the result.

        Args:
            least: Whether to return the minimum: no repair, and the shortest last comparison.
        """
        # Three writes: the result, the staged copy, and the intermediate models.
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
        """Expected seconds for comparing the outputs of a candidate with the float model's."""
        if SQNR in self.accuracy_s:
            return self.accuracy_s[SQNR]
        return 2 * (self._opening_s.again + self.evaluated * self._latency_s)  # and the float model

    def foresee_repair(self, parts: int) -> None:
        """Reserve time for an accuracy repair.

        Args:
            parts: Number of parts of the choice.
        """
        steps = math.ceil(math.log2(parts + 1))
        check_s = self.evaluation_s + self.accuracy_s.get(METRIC, 0.0)
        if self._budget_s is not None:
            most_s = _PART_FOR_REPAIR * self._budget_s
            self.repair_s = min(parts * self.evaluation_s + steps * check_s, most_s)

    def repair_left_s(self) -> float:
        """Return the seconds that a repair may still take, so that its result can be timed."""
        last_s = self._last_builds_s(_FINALS) + self._shortest_s(_FINALS) + 3 * self.write_s
        return self.left_s() - last_s

    def final_s(self, files: int) -> float:
        """Return the seconds for the last comparison, per file: those left, up to the preset's."""
        left_s = self.left_s() - self._last_builds_s(files) - 2 * self.write_s
        if self._budget_s is not None:
            reserved_s = min(_BUDGET_FOR_REOPENING * self._budget_s, left_s / 2)
            left_s -= min(self._all_reopening_s(files), reserved_s)
        return max(0.0, min(self._preset.final_s, left_s / files))

    def spare_finals(self, most: int, spent_s: float) -> int:
        """Return how many models more than the usual ones the last comparison may have.

        Args:
            most: The maximum.
            spent_s: Seconds that the run has taken so far.
        """
        builds_s = MOST_OPENINGS * self._opening_s.again
        each_s = self._preset.final_s + builds_s + self.evaluation_s + self.write_s
        allowed_s = max(_LEAST_FOR_FRONT_S, _PART_FOR_FRONT * spent_s)
        return max(0, min(most, int(min(allowed_s, self.left_s() - self.end_s()) / each_s)))

    def reopening_s(self, files: int, spent_s: float) -> float:
        """Return the total seconds that opening the files of the last comparison again may take.

        Args:
            files: Number of files besides the baseline.
            spent_s: Seconds that the run has taken so far.
        """
        wanted_s = max(_LEAST_FOR_REOPENING_S, _PART_FOR_REOPENING * spent_s)
        left_s = self.left_s() - self._last_builds_s(files) - 2 * self.write_s
        return max(0.0, min(wanted_s, left_s - files * self.final_s(files)))

    def _all_reopening_s(self, files: int) -> float:
        """Return the seconds for opening the files as often as desired, besides the first time."""
        return (MOST_OPENINGS - 1) * (self._last_builds_s(files) + _PILOT_RUNS * self._latency_s)

    def _last_builds_s(self, files: int) -> float:
        return self.start_s + (1 + files) * self._opening_s.again

    def _comparison_s(
        self, candidates: int, effort: Effort, opening_s: float | None = None
    ) -> float:
        models = 1 + candidates
        rounds_s = self._preset.rounds[effort] * models * self._block_s
        timing_s = min(candidates * self._preset.seconds[effort], rounds_s)
        each_s = self.candidate_s if opening_s is None else opening_s
        builds_s = self._opening_s.again + candidates * each_s
        return builds_s + max(timing_s, self._shortest_s(candidates))

    @property
    def candidate_s(self) -> float:
        """Seconds to build a candidate."""
        return self._opening_s.candidate

    def _shortest_s(self, candidates: int) -> float:
        """Return the seconds for the fewest rounds that allow a conclusion."""
        pilot_s = _PILOT_RUNS * self._latency_s
        return (1 + candidates) * (FEWEST_ROUNDS * self._block_s + pilot_s)

    @property
    def _block_s(self) -> float:
        if not self._latency_s:
            return 0.0
        return BlockShape.of(1000.0 * self._latency_s).block_ms / 1000.0
