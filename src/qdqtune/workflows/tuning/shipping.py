"""From the best choice to what is handed over: accurate, written, and timed once more."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path

from qdqtune.autotune.search.space import Space, State
from qdqtune.engines.isolated import Worker
from qdqtune.graph.files import save_model
from qdqtune.graph.prepared import PreparedModel
from qdqtune.qdq.insert import Inserter
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import RangeMethod, Ranges
from qdqtune.workflows.calibrating import Feeding
from qdqtune.workflows.source import Source
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.accuracy import AccuracyRepair, name_groups, parts_of
from qdqtune.workflows.tuning.accuracy_limits import AccuracyLimits
from qdqtune.workflows.tuning.clock import Reporter
from qdqtune.workflows.tuning.earlier import EarlierResult
from qdqtune.workflows.tuning.finish import Timed, time_final, why_not_shipped, write_final
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.measured_accuracy import SQNR, MeasuredAccuracy
from qdqtune.workflows.tuning.pace import Pace
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.story import FINISHED, INTERRUPTED, Story

_logger = logging.getLogger(__name__)

# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0


class Shipping:
    """Finishes a run.

    Args:
        request: What was asked for.
        source: The model.
        feeding: What it is run on.
        folder: Where everything goes.
        reporter: Who hears of it.
        story: What has happened, and is told on.
        accuracy: How accurate placements are.
        new_worker: Starts the engine afresh, with a log of that name.
        earlier: What an earlier run left, if anything.
        pace: What there is time for.

    Attributes:
        chosen: What is quantized in the end.
        ranges: Behind the scales of what ships; None if nothing is quantized in it.
        keeps_earlier: Whether an earlier run's result stays, because it is at least as good.
    """

    def __init__(
        self,
        request: TuneRequest,
        source: Source,
        feeding: Feeding,
        folder: RunFolder,
        reporter: Reporter,
        story: Story,
        accuracy: MeasuredAccuracy,
        new_worker: Callable[[str], Worker],
        earlier: EarlierResult | None,
        pace: Pace,
    ) -> None:
        self.chosen: State = frozenset()
        self.ranges: Ranges | None = None
        self.keeps_earlier = False
        self._request = request
        self._source = source
        self._feeding = feeding
        self._folder = folder
        self._reporter = reporter
        self._story = story
        self._accuracy = accuracy
        self._new_worker = new_worker
        self._earlier = earlier
        self._pace = pace
        self._is_foreseen = False

    def finish(self, space: Space, state: State, inserters: Mapping[RangeMethod, Inserter]) -> None:
        """Make the best choice a file that may be handed over, if it deserves it.

        Args:
            space: What states mean.
            state: The best choice.
            inserters: Writers of candidates, by where their ranges come from.
        """
        self._finish(space, state, inserters)
        if not self._story.is_shipped and self._rival() is not None:
            self.keeps_earlier = True

    def foresee(
        self, space: Space, state: State, inserters: Mapping[RangeMethod, Inserter]
    ) -> None:
        """Judge a choice once, while the search goes on, and reserve time if it needs a repair.

        Args:
            space: What states mean.
            state: The best choice so far.
            inserters: Writers of candidates, by where their ranges come from.
        """
        judging_s = self._pace.judge_s * len(inserters)
        if self._is_foreseen or not state or not self._pace.has_time_for(judging_s):
            return
        self._is_foreseen = True
        if judging_s > _TOLD_AHEAD_S:
            self._reporter.tell("accuracy", "comparing outputs of the best seed with float")
        inserter = inserters[self._best_ranges(space.placement(state), inserters)]
        limits = AccuracyLimits(space, inserter, self._accuracy, self._request)
        if limits.shortfall(state):
            self._pace.foresee_repair(len(parts_of(space, state)))

    def _rival(self) -> EarlierResult | None:
        """The earlier result, if this run would have accepted it as well."""
        earlier = self._earlier
        if earlier is not None and earlier.summary.conditions == self._story.conditions:
            return earlier
        return None

    def _finish(
        self, space: Space, state: State, inserters: Mapping[RangeMethod, Inserter]
    ) -> None:
        story, request = self._story, self._request
        if not space.placement(state):
            story.reason = "no candidate was faster than the float model"
            if story.stopped != FINISHED:
                story.reason += f", as far as the search got ({story.stopped})"
            if not space.groups and story.stopped != INTERRUPTED:
                unknown = "nothing of it has a range that it could be quantized with"
                story.reason = story.why_nothing or unknown
            elif not story.benchmarks + story.memo_hits:
                story.reason = f"nothing was measured before the end ({story.stopped})"
            elif story.why_all_failed:
                why = story.why_all_failed.splitlines()[0]
                story.reason = f"the engine runs no candidate: {why}"
            elif self._source.reading is not None:
                self._ship_float(next(iter(inserters.values())).base)
            return
        self._reporter.tell("accuracy", "comparing outputs with the float model")
        best = self._best_ranges(space.placement(state), inserters)
        inserter = inserters[best]
        state = self._correct(space, state, inserter)
        placement = space.placement(state)
        story.method = best
        if not placement:
            story.reason = f"what is faster is not accurate enough: {story.lost_to_accuracy}"
            return
        story.sqnr_db = self._accuracy.sqnr_db(inserter, placement)
        story.float_sqnr_db = self._accuracy.float_sqnr_db(inserter)
        if story.sqnr_db is None and request.min_sqnr_db is not None and request.evaluate is None:
            _logger.warning(
                "how accurate it is can't be told: no output could be compared; use --evaluate"
            )
        rival = self._rival()
        if rival is not None and rival.placement == placement and self._pace.repair_left_s() < 0:
            story.reason = (
                "it was timed by an earlier run, and --budget leaves no time to repeat it"
            )
            return
        write_final(inserter, placement, self._folder, request.file)
        self._ship_if_faster(placement)
        if story.reason and story.lost_to_accuracy:
            story.reason += f"; {story.lost_to_accuracy}"
        if story.is_shipped:
            self.ranges = inserter.encoder.ranges
            story.placement = placement
            self.chosen = state
            self._write_region_models(space, inserter)

    def _write_region_models(self, space: Space, inserter: Inserter) -> None:
        """Write how the model grew together: pattern by pattern, what was chosen up to there."""
        self._folder.remove_region_models()
        so_far: set[int] = set()
        for view in self._story.grouping.views:
            own = set(space.patterns.get(view.pattern.signature, ())) & self.chosen
            if own:
                so_far |= own
                file = names.REGION_MODELS.format(view.first.id, view.first.level)
                inserter.write(space.placement(frozenset(so_far)), Path(file).stem)

    def _ship_float(self, base: PreparedModel) -> None:
        """The float model inside a Q/DQ file may be faster than the file."""
        self._story.reason = ""
        save_model(base.load(base.whole()), self._folder.staging() / names.FINAL)
        self._ship_if_faster(Placement())

    def _ship_if_faster(self, placement: Placement) -> None:
        """Time what is staged against the model as it was given, to be shipped if it is faster.

        It must beat what an earlier run had proven, too.
        """
        story, request, folder = self._story, self._request, self._folder
        self._reporter.tell("final", "timing the file against the model that was to be beaten")
        staged = folder.staged / names.FINAL
        rival = self._rival()
        rivals = [rival.model] if rival is not None and rival.placement != placement else []
        with contextlib.closing(self._new_worker(names.ENGINE_LOG)) as worker:
            self._reporter.workers.append(worker)
            feeds = next(iter(self._feeding.judged()))
            seconds = self._pace.final_s(1 + len(rivals))
            timed, *others = time_final(
                worker, folder / names.BASELINE, [staged, *rivals], feeds, seconds
            )
        if not isinstance(timed, Timed):
            story.reason = timed
            return
        story.baseline_ms, story.final_ms = timed.baseline_ms, timed.final_ms
        story.comparison = timed.comparison
        story.reason = why_not_shipped(timed.comparison, request.threshold)
        for other in others:
            if isinstance(other, Timed) and other.comparison.ratio >= timed.comparison.ratio:
                story.reason = story.reason or "what an earlier run found is at least as fast"
        story.is_shipped = not story.reason

    def _best_ranges(
        self, placement: Placement, inserters: Mapping[RangeMethod, Inserter]
    ) -> RangeMethod:
        """The ranges with which the choice is nearest to the float model."""
        if len(inserters) == 1:
            return next(iter(inserters))
        progress = self._reporter.progress("accuracy")
        found: dict[RangeMethod, float] = {}
        for way, inserter in inserters.items():
            is_known = self._accuracy.knows(SQNR, inserter, placement)
            if found and not is_known and self._pace.repair_left_s() < self._pace.judge_s:
                continue  # what is known by now has to do
            decibels = self._accuracy.sqnr_db(inserter, placement)
            found[way] = -math.inf if decibels is None else decibels
            progress("comparing ranges", len(found), len(inserters))
        return max(found, key=found.__getitem__)

    def _correct(self, space: Space, state: State, inserter: Inserter) -> State:
        """What of the choice may be shipped; what of it may not is told."""
        request, story, reporter = self._request, self._story, self._reporter
        before = None if story.metric is None else story.metric["float"]
        limits = AccuracyLimits(space, inserter, self._accuracy, request, before)
        shortfall = limits.shortfall(state)
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
        if story.metric is not None and kept:
            story.metric["final"] = self._accuracy.metric(inserter, space.placement(kept))
        return kept
