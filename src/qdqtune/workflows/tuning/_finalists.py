"""Choices become files that may be handed over: accurate within the limits, written, read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdqtune.graph._files import save_model
from qdqtune.qdq._insert import Inserter
from qdqtune.records._accuracy import APPROXIMATE_SQNR, METRIC, SQNR, Rejected
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.records._tuning import Blanket
from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import (
    AccuracyRepair,
    MeasuredAccuracy,
    name_groups,
    parts_of,
)
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._final_check import Timed, check_written
from qdqtune.workflows.tuning._run_records import PreviousResult
from qdqtune.workflows.tuning._setup import TuningTarget

# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0


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


@dataclass
class AccuracyLimits:
    """Checks choices against the limits of accuracy that the user set.

    Attributes:
        space: What choices mean.
        inserter: Writes them, with the ranges that they are evaluated with.
        accuracy: How accurate placements are.
        target: What is tuned.
        missed: The choices that were asked about and must not be shipped, and why.
        unchecked: Those of them that may be accurate enough, but it could not be measured.
    """

    space: Space
    inserter: Inserter
    accuracy: MeasuredAccuracy
    target: TuningTarget
    missed: dict[State, str] = field(default_factory=dict)
    unchecked: set[State] = field(default_factory=set)

    def shortfall(self, choice: State, *, with_metric: bool = True) -> str:
        """Which limit a choice fails, and by how much; empty if it may be shipped.

        Args:
            choice: The choice.
            with_metric: Whether the user's metric counts, which may take long.
        """
        found = self._sqnr_shortfall(choice)
        if not found and with_metric and self.space.placement(choice):
            found = self.metric_shortfall(choice)
        if found:
            self.missed[choice] = found
        return found

    def approximate_sqnr_db(self, choice: State) -> float:
        """How near to the float model a choice is, roughly."""
        return self.accuracy.approximate_sqnr_db(self.inserter, self.space.placement(choice))

    def knows_shortfall(self, choice: State) -> bool:
        """Whether `shortfall` costs nothing, because an earlier run has found it out."""
        if not self.space.placement(choice):
            return True
        if self.target.request.config.min_sqnr_db is not None:
            if not self.knows(SQNR, choice):
                return False
            if self._sqnr_shortfall(choice):
                return True
        return self.target.float_metric is None or self.knows(METRIC, choice)

    def knows_approximate_sqnr_db(self, choice: State) -> bool:
        """Whether `approximate_sqnr_db` costs nothing."""
        return self.knows(APPROXIMATE_SQNR, choice)

    def knows(self, measure: str, choice: State) -> bool:
        """Whether a choice was measured before; see `MeasuredAccuracy.knows`."""
        return self.accuracy.knows(measure, self.inserter, self.space.placement(choice))

    def _sqnr_shortfall(self, choice: State) -> str:
        least_db, placement = self.target.request.config.min_sqnr_db, self.space.placement(choice)
        if least_db is None or not placement:
            return ""
        quality = self.accuracy.quality(self.inserter, placement)
        if quality.why_unknown:
            self.unchecked.add(choice)
        return quality.shortfall(least_db)

    def metric_shortfall(self, choice: State) -> str:
        """Whether the user's metric is too far below that of the file as given.

        The float model's differs from it where the file has Q/DQ.
        """
        before, request = self.target.float_metric, self.target.request
        if before is None or request.evaluate is None:
            return ""
        max_drop, placement = request.config.max_drop, self.space.placement(choice)
        found = self.accuracy.metric(self.inserter, placement)
        if found is None:
            self.unchecked.add(choice)
            why = self.accuracy.why_unknown(METRIC, self.inserter, placement)
            return f"--max_drop {max_drop:g} could not be checked: {why}"
        if found >= before - max_drop:
            return ""
        return (
            f"{request.evaluate.label} {found:.6g} is {before - found:.3g} below the float model's "
            f"{before:.6g}, more than --max_drop {max_drop:g}"
        )


@dataclass(frozen=True)
class Finalized:
    """What is handed over, and what the last comparison said.

    Attributes:
        reason: Why the model comes back as it was; empty if it does not.
        shipped: What is handed over; None if nothing of this run is.
        earlier: What an earlier run left, as far as it is what it claims.
        keeps_earlier: Whether that stays, because it is at least as good.
        timed: How what was to be handed over compares; None if nothing was timed.
        ranges: Behind the scales of what ships; None if nothing is quantized in it.
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
    ranges: Ranges | None = None
    float_sqnr_db: float | None = None
    metric: float | None = None
    lost_to_accuracy: str = ""
    rejected: tuple[Rejected, ...] = ()
    blanket: Blanket | None = None

    @property
    def placement(self) -> Placement:
        """What is quantized in what ships."""
        return self.shipped.placement if self.shipped is not None else Placement()

    @property
    def method(self) -> RangeMethod:
        """Where its ranges come from."""
        found = self.shipped.method if self.shipped is not None else None
        return found or RangeMethod.MAX


@dataclass
class Finalists:
    """Writes choices as files that may be handed over.

    Attributes:
        ctx: The run.
        target: What is tuned.
        accuracy: How accurate placements are.
        space: What choices mean.
        inserters: Writers of candidates, by where their ranges come from.
    """

    ctx: RunContext
    target: TuningTarget
    accuracy: MeasuredAccuracy
    space: Space
    inserters: Mapping[RangeMethod, Inserter]
    _limits: dict[RangeMethod, AccuracyLimits] = field(default_factory=dict, init=False)
    _is_foreseen: bool = field(default=False, init=False)

    def foresee_repair(self, state: State) -> None:
        """Evaluate a choice once, while the search goes on, and reserve time if it needs a repair.

        Args:
            state: The best choice so far.
        """
        budget = self.ctx.budget
        evaluations_s = budget.evaluation_s * len(self.inserters)
        if self._is_foreseen or not state or not budget.has_time_for(evaluations_s):
            return
        self._is_foreseen = True
        if evaluations_s > _TOLD_AHEAD_S:
            told = "comparing outputs of the best seed with float"
            self.ctx.reporter.tell("accuracy", told)
        method = self.best_ranges(self.space.placement(state))
        # Of what is not accurate enough, only what is looked at in the end is reported.
        if self._new_limits(method).shortfall(state, with_metric=False):
            budget.foresee_repair(len(parts_of(self.space, state)))

    def result(self, state: State) -> Finalized:
        """What of the fastest choice is accurate enough, written."""
        self.ctx.reporter.tell("accuracy", "comparing outputs with the float model")
        method = self.best_ranges(self.space.placement(state))
        kept, lost = self._correct(state, method)
        while kept and self._is_inaccurate(kept, method):
            kept, again = self._correct(state, method)
            lost = again or lost
        if kept:
            staging = self.ctx.folder.staging()
            written = self._written("the result", kept, method, staging)
            return Finalized(shipped=written, lost_to_accuracy=lost)
        is_checked = state not in self.limits(method).unchecked
        reason = f"what is faster is not accurate enough: {lost}" if is_checked else lost
        return Finalized(reason, lost_to_accuracy=lost)

    def _is_inaccurate(self, state: State, method: RangeMethod) -> bool:
        """Whether a choice is less accurate than an earlier run in the folder has written down."""
        placement = self.space.placement(state)
        was_known = self.accuracy.forget_sqnr_db(self.inserters[method], placement)
        return was_known and bool(self.limits(method).shortfall(state, with_metric=False))

    def float_model(self) -> Finalized:
        """The float model inside a Q/DQ file, which may be faster than the file.

        Nothing if the user's metric of it is too low: it was asked for of the file as given.
        """
        method, inserter = next(iter(self.inserters.items()))
        if shortfall := self.limits(method).metric_shortfall(frozenset()):
            return Finalized(f"the float model in it is not accurate enough: {shortfall}")
        base = inserter.base
        file = save_model(base.load(base.whole()), self.ctx.folder.staging() / names.FINAL)
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
        if method is None:
            method = self.best_ranges(self.space.placement(blankets[fastest]))
        near = (name for name, state in blankets.items() if self._is_near(state, method))
        name = next(near, fastest)
        state = blankets[name]
        if result is not None and self.space.placement(state) == result.placement:
            return replace(result, name=name)
        if not self._has_time_to_evaluate:
            return None
        folder = self.ctx.folder.scratch / "blanket"
        folder.mkdir(exist_ok=True)
        return self._written(name, state, method, folder)

    def _is_near(self, state: State, method: RangeMethod) -> bool:
        """Whether a blanket is near enough to float; not, if there is no time to find out."""
        limits = self.limits(method)
        if not limits.knows(SQNR, state) and not self._has_time_to_evaluate:
            return False
        return not limits.shortfall(state, with_metric=False)

    @property
    def _has_time_to_evaluate(self) -> bool:
        return self.ctx.budget.repair_left_s() >= self.ctx.budget.evaluation_s

    def shortfall(self, finalist: Finalist, *, with_metric: bool = True) -> str:
        """Which limit of accuracy a finalist misses; empty if it misses none.

        Args:
            finalist: Who.
            with_metric: Whether the user's metric counts, which may take long.
        """
        if finalist.method is None:
            return ""
        return self.limits(finalist.method).shortfall(finalist.state, with_metric=with_metric)

    def metric(self, finalist: Finalist, *, most_s: float = math.inf) -> float | None:
        """The user's metric of a finalist; None if there is none, or if it would take longer.

        Args:
            finalist: Of whom.
            most_s: Seconds that it may take.
        """
        if self.target.request.evaluate is None:
            return None
        method = finalist.method or next(iter(self.inserters))
        inserter = self.inserters[method]
        is_known = self.accuracy.knows(METRIC, inserter, finalist.placement)
        if not is_known and self.ctx.budget.accuracy_s.get(METRIC, math.inf) > most_s:
            return None
        return self.accuracy.metric(inserter, finalist.placement)

    def limits(self, method: RangeMethod) -> AccuracyLimits:
        """How accurate choices must be, with the ranges of this method."""
        if method not in self._limits:
            self._limits[method] = self._new_limits(method)
        return self._limits[method]

    def _new_limits(self, method: RangeMethod) -> AccuracyLimits:
        return AccuracyLimits(self.space, self.inserters[method], self.accuracy, self.target)

    def rejected(self, fastest: State, blankets: Mapping[str, State]) -> tuple[Rejected, ...]:
        """What was looked at and is not accurate enough.

        Args:
            fastest: The best choice of the search.
            blankets: Choices for the whole model, by name.
        """
        key = self.space.key
        named = {key(state): name for name, state in blankets.items()}
        return tuple(
            self._rejected(named.get(key(state)) or _name(state, fastest), state, method, shortfall)
            for method, limits in self._limits.items()
            for state, shortfall in limits.missed.items()
        )

    def _rejected(self, name: str, state: State, method: RangeMethod, shortfall: str) -> Rejected:
        inserter, placement = self.inserters[method], self.space.placement(state)
        limits, accuracy = self.limits(method), self.accuracy
        sqnr_db = accuracy.sqnr_db(inserter, placement) if limits.knows(SQNR, state) else None
        metric = accuracy.metric(inserter, placement) if limits.knows(METRIC, state) else None
        return Rejected(name, len(placement.tensors), sqnr_db, metric, shortfall)

    def _written(self, name: str, state: State, method: RangeMethod, folder: Path) -> Finalist:
        inserter, placement = self.inserters[method], self.space.placement(state)
        self.accuracy.forget_sqnr_db(inserter, placement)
        sqnr_db = self.accuracy.sqnr_db(inserter, placement)
        of_float = self.accuracy.float_sqnr_db(inserter)
        file = save_model(inserter.model(placement), folder / names.FINAL, force=True)
        check_written(file, inserter, placement, self.target.request.file)
        return Finalist(name, state, placement, file, method, sqnr_db, of_float)

    def best_ranges(self, placement: Placement) -> RangeMethod:
        """The ranges with which the choice is nearest to the float model."""
        if len(self.inserters) == 1:
            return next(iter(self.inserters))
        progress = self.ctx.reporter.progress("accuracy")
        found: dict[RangeMethod, float] = {}
        for way, inserter in self.inserters.items():
            is_known = self.accuracy.knows(SQNR, inserter, placement)
            if found and not is_known and not self._has_time_to_evaluate:
                continue  # what is known by now has to do
            decibels = self.accuracy.sqnr_db(inserter, placement)
            found[way] = -math.inf if decibels is None else decibels
            progress("comparing ranges", len(found), len(self.inserters))
        return max(found, key=found.__getitem__)

    def _correct(self, state: State, method: RangeMethod) -> tuple[State, str]:
        """What of the choice may be shipped, and what of it may not, in words."""
        space, reporter, limits = self.space, self.ctx.reporter, self.limits(method)
        shortfall = limits.shortfall(state)
        if state in limits.unchecked:  # leaving parts of it float would not help
            reporter.tell("accuracy", shortfall)
            return frozenset(), shortfall
        if shortfall:
            reporter.tell("accuracy", f"{shortfall}; looking for what has to stay float")
        repair = AccuracyRepair(
            space, limits, self.ctx.budget.repair_left_s, reporter.progress("accuracy")
        )
        kept = repair.correct_part(state)
        kept = kept if space.placement(kept) else frozenset()
        if not shortfall:
            return kept, ""
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
