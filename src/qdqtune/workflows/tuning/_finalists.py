"""What may be handed over: the result, accurate within its limits and written.

The best blanket beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qdqtune.graph._files import save_model
from qdqtune.qdq._insert import Inserter
from qdqtune.records._accuracy import APPROXIMATE_SQNR, METRIC, SQNR, Rejected
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod
from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import (
    AccuracyRepair,
    MeasuredAccuracy,
    name_groups,
    parts_of,
)
from qdqtune.workflows.tuning._context import RunContext, TuneRequest
from qdqtune.workflows.tuning._final_model import Attempt, Finalist, write_final
from qdqtune.workflows.tuning._setup import TuningTarget


class AccuracyLimits:
    """Holds choices against what was asked for.

    Args:
        space: What choices mean.
        inserter: Writes them, with the ranges that they are evaluated with.
        accuracy: How accurate placements are.
        request: What was asked for.
        float_metric: The user's metric of the float model; None without a metric.

    Attributes:
        missed: The choices that were asked about and must not be shipped, and why.
        unchecked: Those of them that may be accurate enough, but it could not be measured.
    """

    def __init__(
        self,
        space: Space,
        inserter: Inserter,
        accuracy: MeasuredAccuracy,
        request: TuneRequest,
        float_metric: float | None = None,
    ) -> None:
        self._space = space
        self._inserter = inserter
        self._accuracy = accuracy
        self._request = request
        self._float_metric = float_metric
        self.missed: dict[State, str] = {}
        self.unchecked: set[State] = set()

    def shortfall(self, choice: State) -> str:
        """Which limit a choice fails, and by how much; empty if it may be shipped."""
        return self.sqnr_shortfall(choice) or self._note(choice, self._metric_shortfall(choice))

    def sqnr_shortfall(self, choice: State) -> str:
        """The same without the user's metric, which may take long."""
        return self._note(choice, self._sqnr_shortfall(choice))

    def approximate_sqnr_db(self, choice: State) -> float:
        """How near to the float model a choice is, roughly."""
        placement = self._space.placement(choice)
        return self._accuracy.approximate_sqnr_db(self._inserter, placement)

    def knows_shortfall(self, choice: State) -> bool:
        """Whether `shortfall` costs nothing, because an earlier run has found it out."""
        if not self._space.placement(choice):
            return True
        if self._request.config.min_sqnr_db is not None:
            if not self._knows(SQNR, choice):
                return False
            if self._sqnr_shortfall(choice):
                return True
        return self._float_metric is None or self._knows(METRIC, choice)

    def knows_approximate_sqnr_db(self, choice: State) -> bool:
        """Whether `approximate_sqnr_db` costs nothing."""
        return self._knows(APPROXIMATE_SQNR, choice)

    def _knows(self, measure: str, choice: State) -> bool:
        return self._accuracy.knows(measure, self._inserter, self._space.placement(choice))

    def _note(self, choice: State, shortfall: str) -> str:
        if shortfall:
            self.missed[choice] = shortfall
        return shortfall

    def _sqnr_shortfall(self, choice: State) -> str:
        least_db, placement = self._request.config.min_sqnr_db, self._space.placement(choice)
        if least_db is None or not placement:
            return ""
        quality = self._accuracy.quality(self._inserter, placement)
        if quality.why_unknown:
            self.unchecked.add(choice)
        return quality.shortfall(least_db)

    def float_shortfall(self) -> str:
        """Whether the user's metric of the float model is too far below that of the file as given.

        They differ where the file has Q/DQ.
        """
        return self._metric_of(frozenset())

    def _metric_shortfall(self, choice: State) -> str:
        return self._metric_of(choice) if self._space.placement(choice) else ""

    def _metric_of(self, choice: State) -> str:
        before, evaluate = self._float_metric, self._request.evaluate
        max_drop = self._request.config.max_drop
        if before is None or evaluate is None:
            return ""
        placement = self._space.placement(choice)
        found = self._accuracy.metric(self._inserter, placement)
        if found is None:
            self.unchecked.add(choice)
            why = self._accuracy.why_unknown(METRIC, self._inserter, placement)
            return f"--max_drop {max_drop:g} could not be checked: {why}"
        if found >= before - max_drop:
            return ""
        return (
            f"{evaluate.label} {found:.6g} is {before - found:.3g} below the float model's "
            f"{before:.6g}, more than --max_drop {max_drop:g}"
        )


# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0


class Finalists:
    """Makes choices into files that may be handed over.

    Args:
        ctx: The run.
        target: What is tuned.
        accuracy: How accurate placements are.
        space: What choices mean.
        inserters: Writers of candidates, by where their ranges come from.
    """

    def __init__(
        self,
        ctx: RunContext,
        target: TuningTarget,
        accuracy: MeasuredAccuracy,
        space: Space,
        inserters: Mapping[RangeMethod, Inserter],
    ) -> None:
        self._ctx = ctx
        self._target = target
        self._accuracy = accuracy
        self._space = space
        self._inserters = inserters
        self._limits: dict[RangeMethod, AccuracyLimits] = {}
        self._is_foreseen = False

    def foresee_repair(self, state: State) -> None:
        """Evaluate a choice once, while the search goes on, and reserve time if it needs a repair.

        Args:
            state: The best choice so far.
        """
        budget = self._ctx.budget
        evaluations_s = budget.evaluation_s * len(self._inserters)
        if self._is_foreseen or not state or not budget.has_time_for(evaluations_s):
            return
        self._is_foreseen = True
        if evaluations_s > _TOLD_AHEAD_S:
            told = "comparing outputs of the best seed with float"
            self._ctx.reporter.tell("accuracy", told)
        method = self.best_ranges(self._space.placement(state))
        # Of what is not accurate enough, only what is looked at in the end is reported.
        if self._new_limits(method).sqnr_shortfall(state):
            budget.foresee_repair(len(parts_of(self._space, state)))

    def result(self, state: State) -> Attempt:
        """What of the fastest choice is accurate enough, written."""
        self._ctx.reporter.tell("accuracy", "comparing outputs with the float model")
        method = self.best_ranges(self._space.placement(state))
        kept, lost = self._correct(state, method)
        while kept and self._is_inaccurate(kept, method):
            kept, again = self._correct(state, method)
            lost = again or lost
        if kept:
            staging = self._ctx.folder.staging()
            return Attempt(self._written("the result", kept, method, staging), "", lost)
        is_checked = state not in self.limits(method).unchecked
        reason = f"what is faster is not accurate enough: {lost}" if is_checked else lost
        return Attempt(None, reason, lost)

    def _is_inaccurate(self, state: State, method: RangeMethod) -> bool:
        """Whether a choice is less accurate than an earlier run in the folder has written down."""
        placement = self._space.placement(state)
        was_known = self._accuracy.forget_sqnr_db(self._inserters[method], placement)
        return was_known and bool(self.limits(method).sqnr_shortfall(state))

    def float_model(self) -> Attempt:
        """The float model inside a Q/DQ file, which may be faster than the file.

        Nothing if the user's metric of it is too low: it was asked for of the file as given.
        """
        method, inserter = next(iter(self._inserters.items()))
        if shortfall := self.limits(method).float_shortfall():
            return Attempt(None, f"the float model in it is not accurate enough: {shortfall}")
        base = inserter.base
        file = save_model(base.load(base.whole()), self._ctx.folder.staging() / names.FINAL)
        return Attempt(Finalist("the float model", frozenset(), Placement(), file))

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
            method = self.best_ranges(self._space.placement(blankets[fastest]))
        near = (name for name, state in blankets.items() if self._is_near(state, method))
        name = next(near, fastest)
        state = blankets[name]
        if result is not None and self._space.placement(state) == result.placement:
            return replace(result, name=name)
        if not self._has_time_to_evaluate:
            return None
        folder = self._ctx.folder.scratch / "blanket"
        folder.mkdir(exist_ok=True)
        return self._written(name, state, method, folder)

    def _is_near(self, state: State, method: RangeMethod) -> bool:
        """Whether a blanket is near enough to float; not, if there is no time to find out."""
        inserter = self._inserters[method]
        is_known = self._accuracy.knows(SQNR, inserter, self._space.placement(state))
        if not is_known and not self._has_time_to_evaluate:
            return False
        return not self.limits(method).sqnr_shortfall(state)

    @property
    def _has_time_to_evaluate(self) -> bool:
        return self._ctx.budget.repair_left_s() >= self._ctx.budget.evaluation_s

    def shortfall(self, finalist: Finalist, *, with_metric: bool = True) -> str:
        """Which limit of accuracy a finalist misses; empty if it misses none.

        Args:
            finalist: Who.
            with_metric: Whether the user's metric counts, which may take long.
        """
        if finalist.method is None:
            return ""
        limits = self.limits(finalist.method)
        asked = limits.shortfall if with_metric else limits.sqnr_shortfall
        return asked(finalist.state)

    def metric(self, finalist: Finalist, *, most_s: float = math.inf) -> float | None:
        """The user's metric of a finalist; None if there is none, or if it would take longer.

        Args:
            finalist: Of whom.
            most_s: Seconds that it may take.
        """
        if self._target.request.evaluate is None:
            return None
        method = finalist.method or next(iter(self._inserters))
        inserter = self._inserters[method]
        is_known = self._accuracy.knows(METRIC, inserter, finalist.placement)
        if not is_known and self._ctx.budget.accuracy_s.get(METRIC, math.inf) > most_s:
            return None
        return self._accuracy.metric(inserter, finalist.placement)

    def limits(self, method: RangeMethod) -> AccuracyLimits:
        """How accurate choices must be, with the ranges of this method."""
        if method not in self._limits:
            self._limits[method] = self._new_limits(method)
        return self._limits[method]

    def _new_limits(self, method: RangeMethod) -> AccuracyLimits:
        target, inserter = self._target, self._inserters[method]
        return AccuracyLimits(
            self._space, inserter, self._accuracy, target.request, target.float_metric
        )

    def rejected(self, fastest: State, blankets: Mapping[str, State]) -> tuple[Rejected, ...]:
        """What was looked at and is not accurate enough.

        Args:
            fastest: The best choice of the search.
            blankets: Choices for the whole model, by name.
        """
        key = self._space.key
        named = {key(state): name for name, state in blankets.items()}
        return tuple(
            self._rejected(named.get(key(state)) or _name(state, fastest), state, method, shortfall)
            for method, limits in self._limits.items()
            for state, shortfall in limits.missed.items()
        )

    def _rejected(self, name: str, state: State, method: RangeMethod, shortfall: str) -> Rejected:
        inserter, placement = self._inserters[method], self._space.placement(state)

        def known(measure: str) -> bool:
            return self._accuracy.knows(measure, inserter, placement)

        return Rejected(
            name,
            len(placement.tensors),
            self._accuracy.sqnr_db(inserter, placement) if known(SQNR) else None,
            self._accuracy.metric(inserter, placement) if known(METRIC) else None,
            shortfall,
        )

    def _written(self, name: str, state: State, method: RangeMethod, folder: Path) -> Finalist:
        inserter, placement = self._inserters[method], self._space.placement(state)
        self._accuracy.forget_sqnr_db(inserter, placement)
        sqnr_db = self._accuracy.sqnr_db(inserter, placement)
        of_float = self._accuracy.float_sqnr_db(inserter)
        file = write_final(inserter, placement, folder, self._target.request.file)
        return Finalist(name, state, placement, file, method, sqnr_db, of_float)

    def best_ranges(self, placement: Placement) -> RangeMethod:
        """The ranges with which the choice is nearest to the float model."""
        if len(self._inserters) == 1:
            return next(iter(self._inserters))
        progress = self._ctx.reporter.progress("accuracy")
        found: dict[RangeMethod, float] = {}
        for way, inserter in self._inserters.items():
            is_known = self._accuracy.knows(SQNR, inserter, placement)
            if found and not is_known and not self._has_time_to_evaluate:
                continue  # what is known by now has to do
            decibels = self._accuracy.sqnr_db(inserter, placement)
            found[way] = -math.inf if decibels is None else decibels
            progress("comparing ranges", len(found), len(self._inserters))
        return max(found, key=found.__getitem__)

    def _correct(self, state: State, method: RangeMethod) -> tuple[State, str]:
        """What of the choice may be shipped, and what of it may not, in words."""
        space, reporter, limits = self._space, self._ctx.reporter, self.limits(method)
        shortfall = limits.shortfall(state)
        if state in limits.unchecked:  # leaving parts of it float would not help
            reporter.tell("accuracy", shortfall)
            return frozenset(), shortfall
        if shortfall:
            reporter.tell("accuracy", f"{shortfall}; looking for what has to stay float")
        repair = AccuracyRepair(
            space, limits, self._ctx.budget.repair_left_s, reporter.progress("accuracy")
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
