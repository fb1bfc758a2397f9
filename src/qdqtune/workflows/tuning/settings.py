"""How thorough a tuning run is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from qdqtune.autotune.presets import preset_for_schemes
from qdqtune.autotune.search.placement_search import Limits
from qdqtune.autotune.search.trial import Effort
from qdqtune.engines.timing import FEWEST_ROUNDS

_RUNS_OF_A_BLOCK = 2  # of a slow model; a fast one has more
_NO_LIMIT_S = 3600.0
# What one candidate's comparison may take of a budget: some twenty candidates are worth a search.
_PART_OF_BUDGET = {Effort.SCREEN: 0.02, Effort.CONFIRM: 0.04}


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


_Number = TypeVar("_Number", int, float)


def _by_effort(screen: _Number, confirm: _Number) -> dict[Effort, _Number]:
    return {Effort.SCREEN: screen, Effort.CONFIRM: confirm}


PRESETS: dict[str, Preset] = {
    "quick": Preset(_by_effort(10, 24), _by_effort(1.5, 3.0), 1, (36, 0.6), 4.0, 12),
    "default": Preset(_by_effort(14, 40), _by_effort(3.0, 8.0), 2, (60, 2.0), 8.0, 16),
    "extensive": Preset(_by_effort(30, 100), _by_effort(8.0, 30.0), 5, (100, 8.0), 30.0, 30),
}
