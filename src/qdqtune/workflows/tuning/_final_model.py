"""The file that is handed over.

Written, read back, and compared once more with the model as given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._reopened_comparison import Allowance, compare_reopened, is_faster
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import check_result, load_model, save_model
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import EngineError
from qdqtune.records._measurement import Comparison, Verdict
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._tuning import Blanket
from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning._folder import FINAL


@dataclass(frozen=True)
class Timed:
    """Two files side by side.

    Attributes:
        baseline_ms: Latency of the first.
        final_ms: Latency of the second.
        comparison: Second over first.
        log_ratios: What each process said that they were opened in.
    """

    baseline_ms: float
    final_ms: float
    comparison: Comparison
    log_ratios: tuple[float, ...] = ()

    def is_faster_than(self, other: Timed) -> bool:
        """Whether its model is significantly faster than another one of the same run."""
        is_clear = self.comparison.low > other.comparison.high
        return is_clear or is_faster(self.log_ratios, other.log_ratios)


def write_final(inserter: Inserter, placement: Placement, folder: Path, original: Path) -> Path:
    """Write the model to a folder, and make sure that what is in the file is what was measured.

    Raises:
        EngineError: If the file's Q/DQ are not those of the placement.
    """
    path = save_model(inserter.model(placement), folder / FINAL, force=True)
    check_written(path, inserter, placement, original)
    return path


def check_written(path: Path, inserter: Inserter, placement: Placement, original: Path) -> None:
    """Make sure that a file is valid, and that what is in it is what was asked for.

    Raises:
        ModelError: If it is not valid.
        EngineError: If its Q/DQ are not those of the placement.
    """
    check_result(path, original)
    found = canonical(inserter.index, read(load_model(path)).placement)
    wanted = canonical(inserter.index, placement)
    if found.edges != wanted.edges:
        lost, added = len(wanted.edges - found.edges), len(found.edges - wanted.edges)
        raise EngineError(
            f"The file does not hold the placement that was measured: {lost} places are lost, "
            f"{added} added.",
            "Nothing was written. This is a bug in qdqtune: please report it with the model.",
        )


def time_final(
    new_worker: Callable[[int], Worker],
    baseline: Path,
    finals: Sequence[Path],
    feeds: Feeds,
    allowance: Allowance,
) -> list[Timed | str]:
    """Time files against the model as it was given.

    Args:
        new_worker: Starts the engine afresh, for the process of this number: nothing of the search
            is left in it.
        baseline: The model as given.
        finals: What may be handed over.
        feeds: What all are run on.
        allowance: What it may take; the fewest rounds are played in any case.

    Returns:
        For each, how it compares, or why it can't be timed.

    Raises:
        EngineError: If the engine doesn't run the model as it was given.
    """
    base, *found = compare_reopened(new_worker, [baseline, *finals], feeds, allowance)
    if base.error is not None:
        raise EngineError(
            f"The engine does not run {baseline}: {base.error}",
            "It ran before: is the machine out of memory?",
        )
    return [
        Timed(base.latency_ms, each.latency_ms, each.comparison, each.log_ratios)
        if each.comparison is not None
        else f"the engine does not run it: {each.error}"
        for each in found
    ]


def why_not_shipped(comparison: Comparison, threshold: float) -> str:
    """Why a model isn't fast enough to be handed over; empty if it is."""
    if comparison.verdict is not Verdict.FASTER:
        is_slower = comparison.verdict is Verdict.SLOWER
        return (
            f"the best that was found is {'slower' if is_slower else 'not significantly faster'}: "
            f"{comparison.ratio:.3f}x, "
            f"between {comparison.low:.3f}x and {comparison.high:.3f}x"
        )
    if comparison.ratio < threshold:
        return f"the best that was found gains {comparison.ratio:.3f}x, less than {threshold:g}x"
    return ""


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
