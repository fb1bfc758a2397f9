"""The last comparison: the result and the best blanket in turns with the model as given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from qdqtune.autotune.search.space import Space, State
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import RangeMethod
from qdqtune.records.tuning import Blanket
from qdqtune.workflows.tuning.final_model import Timed, why_not_shipped


@dataclass(frozen=True)
class Finalist:
    """A model that may be handed over.

    Attributes:
        name: What it is, in words.
        state: What is chosen in it.
        placement: What is quantized in it.
        file: Where it lies, ready to be handed over.
        method: Where its ranges come from; None if nothing is quantized in it.
        sqnr_db: The worst output's distance from the float model; None if unknown.
        float_sqnr_db: That of the float model itself from float32, as the engine computes it; None
            if it does so in float32.
    """

    name: str
    state: State
    placement: Placement
    file: Path
    method: RangeMethod | None = None
    sqnr_db: float | None = None
    float_sqnr_db: float | None = None


@dataclass(frozen=True)
class Attempt:
    """What became of the best choice.

    Attributes:
        finalist: The model; None if there is nothing to hand over.
        reason: Why there is none.
        lost_to_accuracy: What of it had to stay float, and why; empty if nothing.
    """

    finalist: Finalist | None = None
    reason: str = ""
    lost_to_accuracy: str = ""


@dataclass(frozen=True)
class FinalRound:
    """Who was in the last comparison, and how it came out.

    Attributes:
        result: What the search found; None if it found nothing that may be handed over.
        blanket: The best placement that follows a rule for the whole model; None if there is none.
            The result itself, if both are the same.
        timed: How each file compares with the model as given, or why it can't be timed.
    """

    result: Finalist | None
    blanket: Finalist | None
    timed: Mapping[Path, Timed | str]

    @property
    def is_same(self) -> bool:
        """Whether the result is the blanket."""
        return (
            self.result is not None
            and self.blanket is not None
            and self.result.placement == self.blanket.placement
        )

    def time_of(self, finalist: Finalist | None) -> Timed | None:
        """How a finalist compares; None if it was not timed."""
        found = None if finalist is None else self.timed.get(finalist.file)
        return found if isinstance(found, Timed) else None

    def choose(
        self, threshold: float, blanket_shortfall: Callable[[], str]
    ) -> tuple[Finalist | None, str]:
        """Who is handed over: never a result that the blanket is known to beat.

        Args:
            threshold: The speedup that it takes.
            blanket_shortfall: Says which limit of accuracy the blanket misses; asked only if it
                matters.

        Returns:
            The finalist, or None, and why it is not the result.
        """
        reason = self._why_not(self.result, threshold)
        ours, best = self.time_of(self.result), self.time_of(self.blanket)
        if best is not None and not self.is_same and not self._why_not(self.blanket, threshold):
            is_better = bool(reason) or ours is None or best.is_faster_than(ours)
            if is_better and not blanket_shortfall():
                return self.blanket, ""
        return (None, reason) if reason else (self.result, "")

    def blanket_record(
        self, shipped: Finalist | None, shortfall: str, metric: float | None
    ) -> Blanket | None:
        """What the summary says of the blanket; None if it was not timed.

        Args:
            shipped: Who is handed over.
            shortfall: Which limit of accuracy the blanket misses.
            metric: The user's metric of it.
        """
        timed = self.time_of(self.blanket)
        if timed is None or self.blanket is None:
            return None
        return Blanket(
            name=self.blanket.name,
            latency_ms=timed.final_ms,
            speedup=timed.comparison.ratio,
            speedup_interval=(timed.comparison.low, timed.comparison.high),
            sqnr_db=self.blanket.sqnr_db,
            metric=metric,
            identical=shipped is not None and shipped.placement == self.blanket.placement,
            shortfall=shortfall,
        )

    def _why_not(self, finalist: Finalist | None, threshold: float) -> str:
        if finalist is None:
            return ""
        found = self.timed.get(finalist.file, "it was not timed")
        return why_not_shipped(found.comparison, threshold) if isinstance(found, Timed) else found


def fastest_first(
    space: Space, seeds: Mapping[str, State], speedups: Mapping[str, float]
) -> dict[str, State]:
    """Whole-model choices by what the search saw of them; those that are the same, once.

    Args:
        space: What choices mean.
        seeds: The choices, by name.
        speedups: What was seen of them; those that failed are missing.
    """
    found: dict[str, tuple[str, State]] = {}
    timed = [name for name in seeds if name in speedups]
    for name in sorted(timed, key=lambda each: -speedups[each]):
        if space.placement(seeds[name]):
            found.setdefault(space.key(seeds[name]), (name, seeds[name]))
    return dict(found.values())
