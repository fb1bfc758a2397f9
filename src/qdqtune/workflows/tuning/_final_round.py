"""The last comparison: which models take part in it, and which of them becomes the result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from qdqtune.config import ACCURACY, TuneConfig
from qdqtune.records._front import not_beaten
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._tuning import Blanket
from qdqtune.search._space import State
from qdqtune.workflows.tuning._final_check import PreviousResult, Timed, why_not_shipped

# How much slower a model may be that does not depend on calibration, or is more accurate.
_NEARLY_AS_FAST = 1.02


class Role(Enum):
    """Why a model takes part in the last comparison."""

    RESULT = "the fastest"
    BLANKET = "a whole-model placement that needs no search"
    FRONT = "slower in the search, and more accurate"
    SMOOTHED = "the fastest, with smoothed inputs of products"
    UNCALIBRATED = "the fastest that needs no calibration"


@dataclass(frozen=True)
class Finalist:
    """A model that may become the result.

    Attributes:
        name: A description.
        state: The choice.
        placement: Its placement.
        file: Its file, ready to become the result.
        method: The method of its ranges; None if nothing is quantized.
        sqnr_db: SQNR of the worst output against the float model; None if unknown.
        role: Why it takes part.
    """

    name: str
    state: State
    placement: Placement
    file: Path
    method: RangeMethod | None = None
    sqnr_db: float | None = None
    role: Role = Role.RESULT

    @property
    def is_smoothed(self) -> bool:
        """Whether inputs of products are smoothed in it."""
        return self.role is Role.SMOOTHED


@dataclass(frozen=True)
class Objective:
    """What the result is chosen for.

    Attributes:
        threshold: The minimum speedup.
        prefers_accuracy: Whether the most accurate model wins, instead of the fastest.
        max_latency_ms: The most that it may take; infinite without a limit.
    """

    threshold: float
    prefers_accuracy: bool = False
    max_latency_ms: float = math.inf

    @classmethod
    def of(cls, config: TuneConfig) -> Objective:
        """Return what the user asked for."""
        limit_ms = config.max_latency_ms
        return cls(
            config.performance_threshold,
            config.objective == ACCURACY or limit_ms is not None,
            math.inf if limit_ms is None else limit_ms,
        )


@dataclass(frozen=True)
class FinalRound:
    """The last comparison, and its outcome.

    Attributes:
        entries: The models, that of the search first. Several may be the same file, in several
            roles.
        timed: The comparison of each file with the original model, or why it can't be timed.
    """

    entries: Sequence[Finalist]
    timed: Mapping[Path, Timed | str]

    def entry(self, role: Role) -> Finalist | None:
        """Return the first model in a role."""
        return next((each for each in self.entries if each.role is role), None)

    def time_of(self, entry: Finalist | PreviousResult | None) -> Timed | None:
        """Return the timing of a model; None if it was not timed."""
        found = None if entry is None else self.timed.get(entry.file)
        return found if isinstance(found, Timed) else None

    def choose(
        self,
        objective: Objective,
        shortfall: Callable[[Finalist], str],
        metric: Callable[[Finalist], float | None] = lambda _: None,
    ) -> tuple[Finalist | None, str]:
        """Choose the result.

        Args:
            objective: What it is chosen for.
            shortfall: Returns which accuracy limit a model misses; called only if it matters.
            metric: Returns the user's metric of a model; called only if accuracy is the objective.

        Returns:
            The finalist, or None, and why it is not the result of the search.
        """
        usable = [each for each in self.entries if not self._why_not(each, objective.threshold)]
        if objective.prefers_accuracy:
            if reason := self._float_is_fast_enough(objective.max_latency_ms):
                return None, reason
            within = [each for each in usable if self._ms(each) <= objective.max_latency_ms]
            known = {each.file: metric(each) for each in within}
            within.sort(key=lambda each: _accuracy(each, known[each.file]), reverse=True)
            chosen = next((each for each in within if not shortfall(each)), None)
            if chosen is not None:
                return chosen, ""
        result = self.entry(Role.RESULT)
        chosen = result if result in usable else None
        for rival in usable:
            if self._wins(rival, chosen) and not shortfall(rival):
                chosen = rival
        is_given = chosen is not None or result is None
        return chosen, "" if is_given else self._why_not(result, objective.threshold)

    def front(
        self,
        objective: Objective,
        chosen: Finalist,
        shortfall: Callable[[Finalist], str],
        metric: Callable[[Finalist], float | None],
    ) -> list[Finalist]:
        """Return the models that no other beats in both speedup and accuracy, fastest first.

        The result is one of them even if another does: that is not significantly faster, or it
        needs calibration.

        Args:
            objective: Has the minimum speedup.
            chosen: The result, which is always one of them.
            shortfall: Returns which accuracy limit a model misses.
            metric: Returns the user's metric of a model, if known.
        """
        models = {each.file: each for each in (chosen, *self.entries)[::-1]}
        models[chosen.file] = chosen
        usable = [
            each
            for each in models.values()
            if each.method is not None
            and not self._why_not(each, objective.threshold)
            and (each is chosen or not shortfall(each))
        ]
        known = {each.file: metric(each) for each in usable}
        has_all = all(found is not None for found in known.values())
        found = not_beaten(
            usable,
            self._speedup,
            lambda each: (known[each.file] if has_all else each.sqnr_db) or -math.inf,
        )
        found += [chosen] if chosen in usable and chosen not in found else []
        return sorted(found, key=self._speedup, reverse=True)

    def blanket_record(
        self, shipped: Finalist | None, shortfall: str, metric: float | None
    ) -> Blanket | None:
        """Return the summary's record of the blanket; None if it was not timed.

        Args:
            shipped: The chosen finalist.
            shortfall: The accuracy limit that the blanket misses.
            metric: The user's metric of it.
        """
        blanket = self.entry(Role.BLANKET)
        timed = self.time_of(blanket)
        if timed is None or blanket is None:
            return None
        return Blanket(
            name=blanket.name,
            latency_ms=timed.final_ms,
            speedup=timed.comparison.ratio,
            speedup_interval=(timed.comparison.low, timed.comparison.high),
            sqnr_db=blanket.sqnr_db,
            metric=metric,
            identical=shipped is not None and shipped.placement == blanket.placement,
            shortfall=shortfall,
        )

    def _wins(self, rival: Finalist, chosen: Finalist | None) -> bool:
        """Whether a model is preferred: it is faster, or as fast and needs less or errs less."""
        if chosen is None:
            return True
        ours, other = self.time_of(chosen), self.time_of(rival)
        if ours is None or other is None or rival.file == chosen.file:
            return False
        is_nearer = (rival.sqnr_db or -math.inf) > (chosen.sqnr_db or -math.inf)
        if rival.role is Role.UNCALIBRATED or (rival.role is Role.SMOOTHED and is_nearer):
            return ours.comparison.ratio <= _NEARLY_AS_FAST * other.comparison.ratio
        return other.is_faster_than(ours)

    def _float_is_fast_enough(self, limit_ms: float) -> str:
        if math.isinf(limit_ms):
            return ""
        timed = (each for each in self.timed.values() if isinstance(each, Timed))
        baseline_ms = next((each.baseline_ms for each in timed), math.inf)
        if baseline_ms > limit_ms:
            return ""
        return f"it takes {baseline_ms:.3f} ms, which --max_latency {limit_ms:g} allows"

    def _speedup(self, entry: Finalist) -> float:
        timed = self.time_of(entry)
        return 0.0 if timed is None else timed.comparison.ratio

    def _ms(self, entry: Finalist) -> float:
        timed = self.time_of(entry)
        return math.inf if timed is None else timed.final_ms

    def _why_not(self, finalist: Finalist | None, threshold: float) -> str:
        if finalist is None:
            return ""
        found = self.timed.get(finalist.file, "it was not timed")
        return why_not_shipped(found.comparison, threshold) if isinstance(found, Timed) else found


def _accuracy(entry: Finalist, metric: float | None) -> tuple[float, float]:
    return (
        -math.inf if metric is None else metric,
        -math.inf if entry.sqnr_db is None else entry.sqnr_db,
    )
