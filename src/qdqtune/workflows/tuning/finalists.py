"""What may be handed over: the result, accurate and written, and the best blanket beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qdqtune.autotune.search.space import Space, State
from qdqtune.graph.files import save_model
from qdqtune.qdq.insert import Inserter
from qdqtune.records.accuracy import Rejected
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import RangeMethod
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.accuracy import AccuracyRepair, name_groups
from qdqtune.workflows.tuning.accuracy_limits import AccuracyLimits
from qdqtune.workflows.tuning.final_model import write_final
from qdqtune.workflows.tuning.final_round import Finalist
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.measured_accuracy import METRIC, SQNR, MeasuredAccuracy
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.story import Story
from qdqtune.workflows.tuning.time_budget import TimeBudget


class Finalists:
    """Makes choices into files that may be handed over.

    Args:
        request: What was asked for.
        folder: Where everything goes.
        reporter: Who hears of it.
        story: What has happened, and is told on.
        accuracy: How accurate placements are.
        pace: What there is time for.
        space: What choices mean.
        inserters: Writers of candidates, by where their ranges come from.
        blankets: Choices for the whole model that need no search, by name, fastest first.
    """

    def __init__(
        self,
        request: TuneRequest,
        folder: RunFolder,
        reporter: ProgressReporter,
        story: Story,
        accuracy: MeasuredAccuracy,
        pace: TimeBudget,
        space: Space,
        inserters: Mapping[RangeMethod, Inserter],
        blankets: Mapping[str, State],
    ) -> None:
        self._request = request
        self._folder = folder
        self._reporter = reporter
        self._story = story
        self._accuracy = accuracy
        self._pace = pace
        self._space = space
        self._inserters = inserters
        self._blankets = blankets
        self._fastest: State = frozenset()
        self._limits: dict[RangeMethod, AccuracyLimits] = {}

    def result(self, state: State) -> Finalist | None:
        """What of the fastest choice is accurate enough, written; None if nothing of it is."""
        space, story = self._space, self._story
        self._fastest = state
        self._reporter.tell("accuracy", "comparing outputs with the float model")
        method = self.best_ranges(space.placement(state))
        kept = self._correct(state, method)
        while kept and self._is_inaccurate(kept, method):
            kept = self._correct(state, method)
        if not kept:
            story.reason = story.lost_to_accuracy
            if state not in self.limits(method).unchecked:
                story.reason = f"what is faster is not accurate enough: {story.reason}"
            return None
        return self._written("the result", kept, method, self._folder.staging())

    def _is_inaccurate(self, state: State, method: RangeMethod) -> bool:
        """Whether a choice is less accurate than an earlier run in the folder has written down."""
        placement = self._space.placement(state)
        was_known = self._accuracy.forget_sqnr_db(self._inserters[method], placement)
        return was_known and bool(self.limits(method).sqnr_shortfall(state))

    def float_model(self) -> Finalist | None:
        """The float model inside a Q/DQ file, which may be faster than the file.

        Returns:
            None if the user's metric of it is too low: it was asked for of the file as given.
        """
        inserter = next(iter(self._inserters.values()))
        shortfall = self.limits(next(iter(self._inserters))).float_shortfall()
        if shortfall:
            self._story.reason = f"the float model in it is not accurate enough: {shortfall}"
            return None
        base = inserter.base
        file = save_model(base.load(base.whole()), self._folder.staging() / names.FINAL)
        return Finalist("the float model", frozenset(), Placement(), file)

    def blanket(self, result: Finalist | None) -> Finalist | None:
        """The fastest blanket that is near enough to float, or else the fastest.

        Args:
            result: What the search found; it is the blanket, too, if both quantize the same.

        Returns:
            None if no blanket was timed, or if there is no time to time one again.
        """
        if not self._blankets:
            return None
        fastest = next(iter(self._blankets))
        method = result.method if result is not None else None
        if method is None:
            method = self.best_ranges(self._space.placement(self._blankets[fastest]))
        name = next(filter(lambda each: self._is_near(each, method), self._blankets), fastest)
        state = self._blankets[name]
        if result is not None and self._space.placement(state) == result.placement:
            return replace(result, name=name)
        if not self._has_time_to_evaluate:
            return None
        folder = self._folder.scratch / "blanket"
        folder.mkdir(exist_ok=True)
        return self._written(name, state, method, folder)

    def _is_near(self, name: str, method: RangeMethod) -> bool:
        """Whether a blanket is near enough to float; not, if there is no time to find out."""
        state, inserter = self._blankets[name], self._inserters[method]
        is_known = self._accuracy.knows(SQNR, inserter, self._space.placement(state))
        if not is_known and not self._has_time_to_evaluate:
            return False
        return not self.limits(method).sqnr_shortfall(state)

    @property
    def _has_time_to_evaluate(self) -> bool:
        return self._pace.repair_left_s() >= self._pace.evaluation_s

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
        if self._request.evaluate is None:
            return None
        method = finalist.method or next(iter(self._inserters))
        inserter = self._inserters[method]
        is_known = self._accuracy.knows(METRIC, inserter, finalist.placement)
        if not is_known and self._accuracy.seconds.get(METRIC, math.inf) > most_s:
            return None
        return self._accuracy.metric(inserter, finalist.placement)

    def note_metric(self, finalist: Finalist) -> None:
        """Tell the user's metric of what is to be handed over."""
        metric = self.metric(finalist)
        if self._story.metric is not None and metric is not None:
            self._story.metric["final"] = metric

    def limits(self, method: RangeMethod) -> AccuracyLimits:
        """How accurate choices must be, with the ranges of this method."""
        if method not in self._limits:
            metric = self._story.metric
            before = None if metric is None else metric["float"]
            self._limits[method] = AccuracyLimits(
                self._space, self._inserters[method], self._accuracy, self._request, before
            )
        return self._limits[method]

    def rejected(self) -> tuple[Rejected, ...]:
        """What was looked at and is not accurate enough."""
        return tuple(
            self._rejected(state, method, shortfall)
            for method, limits in self._limits.items()
            for state, shortfall in limits.missed.items()
        )

    def _rejected(self, state: State, method: RangeMethod, shortfall: str) -> Rejected:
        inserter, placement = self._inserters[method], self._space.placement(state)

        def known(measure: str) -> bool:
            return self._accuracy.knows(measure, inserter, placement)

        return Rejected(
            self._name(state),
            len(placement.tensors),
            self._accuracy.sqnr_db(inserter, placement) if known(SQNR) else None,
            self._accuracy.metric(inserter, placement) if known(METRIC) else None,
            shortfall,
        )

    def _name(self, state: State) -> str:
        key = self._space.key(state)
        for name, blanket in self._blankets.items():
            if self._space.key(blanket) == key:
                return name
        dropped = len(self._fastest - state)
        if not dropped:
            return "the fastest candidate"
        return f"the fastest candidate with {dropped} of {len(self._fastest)} choices left float"

    def _written(self, name: str, state: State, method: RangeMethod, folder: Path) -> Finalist:
        request, inserter = self._request, self._inserters[method]
        placement = self._space.placement(state)
        self._accuracy.forget_sqnr_db(inserter, placement)
        sqnr_db = self._accuracy.sqnr_db(inserter, placement)
        self._story.float_sqnr_db = self._accuracy.float_sqnr_db(inserter)
        file = write_final(inserter, placement, folder, request.file)
        return Finalist(name, state, placement, file, method, sqnr_db)

    def best_ranges(self, placement: Placement) -> RangeMethod:
        """The ranges with which the choice is nearest to the float model."""
        if len(self._inserters) == 1:
            return next(iter(self._inserters))
        progress = self._reporter.progress("accuracy")
        found: dict[RangeMethod, float] = {}
        for way, inserter in self._inserters.items():
            is_known = self._accuracy.knows(SQNR, inserter, placement)
            if found and not is_known and not self._has_time_to_evaluate:
                continue  # what is known by now has to do
            decibels = self._accuracy.sqnr_db(inserter, placement)
            found[way] = -math.inf if decibels is None else decibels
            progress("comparing ranges", len(found), len(self._inserters))
        return max(found, key=found.__getitem__)

    def _correct(self, state: State, method: RangeMethod) -> State:
        """What of the choice may be shipped; what of it may not is told."""
        space, story, reporter = self._space, self._story, self._reporter
        limits = self.limits(method)
        shortfall = limits.shortfall(state)
        if state in limits.unchecked:  # leaving parts of it float would not help
            story.lost_to_accuracy = shortfall
            reporter.tell("accuracy", shortfall)
            return frozenset()
        if shortfall:
            reporter.tell("accuracy", f"{shortfall}; looking for what has to stay float")
        repair = AccuracyRepair(
            space, limits, self._pace.repair_left_s, reporter.progress("accuracy")
        )
        kept = repair.correct_part(state)
        kept = kept if space.placement(kept) else frozenset()
        if shortfall:
            left = f"left float: {name_groups(space, state - kept, state)}"
            if repair.is_cut_short:
                left += " (--budget left no time to look for fewer)"
            story.lost_to_accuracy = f"{shortfall}; {left}"
            reporter.tell("accuracy", left)
        return kept
