"""Choices become files that may be handed over: accurate within the limits, written, read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdqtune.graph._files import save_model
from qdqtune.records._accuracy import METRIC, SQNR, Rejected
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._tuning import Blanket
from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import (
    AccuracyRepair,
    ChoiceAccuracy,
    name_groups,
    parts_of,
)
from qdqtune.workflows.tuning._final_check import PreviousResult, Timed, check_written
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._time_budget import TOLD_AHEAD_S


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
    """

    name: str
    state: State
    placement: Placement
    file: Path
    method: RangeMethod | None = None
    sqnr_db: float | None = None


@dataclass(frozen=True)
class Finalized:
    """What is handed over, and what the last comparison said.

    Attributes:
        reason: Why the model comes back as it was; empty if it does not.
        shipped: What is handed over; None if nothing of this run is.
        earlier: What an earlier run left, as far as it is what it claims.
        keeps_earlier: Whether that stays, because it is at least as good.
        timed: How what was to be handed over compares; None if nothing was timed.
        float_sqnr_db: How near to float32 the float model is, as the engine computes it.
        metric: The user's metric of what ships.
        lost_to_accuracy: What had to stay float, and why; empty if nothing.
        rejected: What was looked at and is not accurate enough.
        blanket: The best placement by a rule, if it was timed.
    """

    reason: str = ""
    shipped: Finalist | None = None
    earlier: PreviousResult | None = None
    keeps_earlier: bool = False
    timed: Timed | None = None
    float_sqnr_db: float | None = None
    metric: float | None = None
    lost_to_accuracy: str = ""
    rejected: tuple[Rejected, ...] = ()
    blanket: Blanket | None = None

    @property
    def placement(self) -> Placement:
        """What is quantized in what ships."""
        return self.shipped.placement if self.shipped is not None else Placement()


@dataclass
class Finalists:
    """Writes choices as files that may be handed over.

    Attributes:
        run: The run.
        space: What choices mean.
        accuracy: How accurate they are, by where their ranges come from; not empty.
    """

    run: TuningRun
    space: Space
    accuracy: Mapping[RangeMethod, ChoiceAccuracy]
    _is_foreseen: bool = field(default=False, init=False)

    def foresee_repair(self, state: State) -> None:
        """Evaluate a choice once, while the search goes on, and reserve time if it needs a repair.

        Args:
            state: The best choice so far.
        """
        budget = self.run.budget
        evaluations_s = budget.evaluation_s * len(self.accuracy)
        if self._is_foreseen or not state or not budget.has_time_for(evaluations_s):
            return
        self._is_foreseen = True
        if evaluations_s > TOLD_AHEAD_S:
            told = "comparing outputs of the best seed with float"
            self.run.reporter.tell("accuracy", told)
        accuracy = self.accuracy[self._best_ranges(state)]
        if accuracy.shortfall(state, with_metric=False):
            budget.foresee_repair(len(parts_of(self.space, state)))
        accuracy.missed.clear()  # only what is looked at in the end is reported

    def result(self, state: State) -> Finalized:
        """What of the fastest choice is accurate enough, written."""
        self.run.reporter.tell("accuracy", "comparing outputs with the float model")
        method = self._best_ranges(state)
        accuracy = self.accuracy[method]
        kept, lost = self._correct(state, accuracy)
        # What an earlier run in the folder has written down must still be so.
        while (
            kept and accuracy.forget_sqnr_db(kept) and accuracy.shortfall(kept, with_metric=False)
        ):
            kept, again = self._correct(state, accuracy)
            lost = again or lost
        if kept:
            staging = self.run.folder.staging()
            written = self._written("the result", kept, method, staging)
            return Finalized(shipped=written, lost_to_accuracy=lost)
        is_checked = state not in accuracy.unchecked
        reason = f"what is faster is not accurate enough: {lost}" if is_checked else lost
        return Finalized(reason, lost_to_accuracy=lost)

    def float_model(self) -> Finalized:
        """The float model inside a Q/DQ file, which may be faster than the file.

        Nothing if the user's metric of it is too low: it was asked for of the file as given.
        """
        accuracy = next(iter(self.accuracy.values()))
        if shortfall := accuracy.metric_shortfall(frozenset()):
            return Finalized(f"the float model in it is not accurate enough: {shortfall}")
        base = accuracy.inserter.base
        file = save_model(base.load(base.whole()), self.run.folder.staging() / names.FINAL)
        return Finalized(shipped=Finalist("the float model", frozenset(), Placement(), file))

    def blanket(self, result: Finalist | None, blankets: Mapping[str, State]) -> Finalist | None:
        """The fastest blanket that is near enough to float, or else the fastest.

        Args:
            result: What the search found; it is the blanket, too, if both quantize the same.
            blankets: Choices for the whole model that need no search, by name, fastest first.

        Returns:
            None if no blanket was timed, or if there is no time to time one again.
        """
        if not blankets:
            return None
        fastest = next(iter(blankets))
        method = result.method if result is not None else None
        method = method or self._best_ranges(blankets[fastest])
        near = (name for name, state in blankets.items() if self._is_near(state, method))
        name = next(near, fastest)
        state = blankets[name]
        if result is not None and self.space.placement(state) == result.placement:
            return replace(result, name=name)
        if not self._has_time_to_evaluate:
            return None
        folder = self.run.folder.scratch / "blanket"
        folder.mkdir(exist_ok=True)
        return self._written(name, state, method, folder)

    def _is_near(self, state: State, method: RangeMethod) -> bool:
        """Whether a blanket is near enough to float; not, if there is no time to find out."""
        accuracy = self.accuracy[method]
        if not accuracy.knows(SQNR, state) and not self._has_time_to_evaluate:
            return False
        return not accuracy.shortfall(state, with_metric=False)

    @property
    def _has_time_to_evaluate(self) -> bool:
        return self.run.budget.repair_left_s() >= self.run.budget.evaluation_s

    def shortfall(self, finalist: Finalist, *, with_metric: bool = True) -> str:
        """Which limit of accuracy a finalist misses; empty if it misses none.

        Args:
            finalist: Who.
            with_metric: Whether the user's metric counts, which may take long.
        """
        if finalist.method is None:
            return ""
        return self.accuracy[finalist.method].shortfall(finalist.state, with_metric=with_metric)

    def metric(self, finalist: Finalist, *, most_s: float = math.inf) -> float | None:
        """The user's metric of a finalist; None if there is none, or if it would take longer.

        Args:
            finalist: Of whom.
            most_s: Seconds that it may take.
        """
        if self.run.request.evaluate is None:
            return None
        accuracy = self.accuracy[finalist.method or next(iter(self.accuracy))]
        is_known = accuracy.knows(METRIC, finalist.state)
        if not is_known and self.run.budget.accuracy_s.get(METRIC, math.inf) > most_s:
            return None
        return accuracy.measured(METRIC, finalist.state)

    def rejected(self, fastest: State, blankets: Mapping[str, State]) -> tuple[Rejected, ...]:
        """What was looked at and is not accurate enough.

        Args:
            fastest: The best choice of the search.
            blankets: Choices for the whole model, by name.
        """
        key = self.space.key
        named = {key(state): name for name, state in blankets.items()}
        return tuple(
            Rejected(
                named.get(key(state)) or _name(state, fastest),
                len(self.space.placement(state).tensors),
                accuracy.known(SQNR, state),
                accuracy.known(METRIC, state),
                shortfall,
            )
            for accuracy in self.accuracy.values()
            for state, shortfall in accuracy.missed.items()
        )

    def _written(self, name: str, state: State, method: RangeMethod, folder: Path) -> Finalist:
        accuracy, placement = self.accuracy[method], self.space.placement(state)
        accuracy.forget_sqnr_db(state)
        sqnr_db = accuracy.measured(SQNR, state)
        file = save_model(accuracy.inserter.model(placement), folder / names.FINAL, force=True)
        check_written(file, accuracy.inserter, placement, self.run.request.file)
        return Finalist(name, state, placement, file, method, sqnr_db)

    def _best_ranges(self, state: State) -> RangeMethod:
        """The ranges with which a choice is nearest to the float model."""
        if len(self.accuracy) == 1:
            return next(iter(self.accuracy))
        progress = self.run.reporter.progress("accuracy")
        found: dict[RangeMethod, float] = {}
        for way, accuracy in self.accuracy.items():
            if found and not accuracy.knows(SQNR, state) and not self._has_time_to_evaluate:
                continue  # what is known by now has to do
            decibels = accuracy.measured(SQNR, state)
            found[way] = -math.inf if decibels is None else decibels
            progress("comparing ranges", len(found), len(self.accuracy))
        return max(found, key=found.__getitem__)

    def _correct(self, state: State, accuracy: ChoiceAccuracy) -> tuple[State, str]:
        """What of the choice may be shipped, and what of it may not, in words."""
        space, reporter = self.space, self.run.reporter
        shortfall = accuracy.shortfall(state)
        if not shortfall:
            return state, ""
        if state in accuracy.unchecked:  # leaving parts of it float would not help
            reporter.tell("accuracy", shortfall)
            return frozenset(), shortfall
        reporter.tell("accuracy", f"{shortfall}; looking for what has to stay float")
        repair = AccuracyRepair(
            space, accuracy, self.run.budget.repair_left_s, reporter.progress("accuracy")
        )
        kept = repair.correct_part(state)
        kept = kept if space.placement(kept) else frozenset()
        left = f"left float: {name_groups(space, state - kept, state)}"
        if repair.is_cut_short:
            left += " (--budget left no time to look for fewer)"
        reporter.tell("accuracy", left)
        return kept, f"{shortfall}; {left}"


def _name(state: State, fastest: State) -> str:
    dropped = len(fastest - state)
    if not dropped:
        return "the fastest candidate"
    return f"the fastest candidate with {dropped} of {len(fastest)} choices left float"
