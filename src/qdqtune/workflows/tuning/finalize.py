"""From the best choice to what is handed over: accurate, written, and timed once more."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from qdqtune.autotune.search.space import Space, State
from qdqtune.engines import registry
from qdqtune.engines.isolated import Worker
from qdqtune.engines.reopened_comparison import Allowance
from qdqtune.qdq.insert import Inserter
from qdqtune.records.ranges import RangeMethod, Ranges
from qdqtune.workflows.sample_provider import SampleProvider
from qdqtune.workflows.source_model import Source
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.accuracy import parts_of
from qdqtune.workflows.tuning.final_model import Timed, time_final
from qdqtune.workflows.tuning.final_round import Finalist, FinalRound
from qdqtune.workflows.tuning.finalists import Finalists
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.measured_accuracy import MeasuredAccuracy
from qdqtune.workflows.tuning.previous_result import PreviousResult
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.story import BY_BUDGET, FINISHED, INTERRUPTED, Story
from qdqtune.workflows.tuning.time_budget import TimeBudget

# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0


class Finalizer:
    """Finishes a run.

    Args:
        request: What was asked for.
        source: The model.
        provider: What it is run on.
        folder: Where everything goes.
        reporter: Who hears of it.
        story: What has happened, and is told on.
        accuracy: How accurate placements are.
        new_worker: Starts the engine afresh, with a log of that name, for the process of that
            number in the last comparison.
        earlier: What an earlier run left, if anything.
        pace: What there is time for.

    Attributes:
        chosen: What is quantized in the end.
        ranges: Behind the scales of what ships; None if nothing is quantized in it.
        keeps_earlier: Whether an earlier run's result stays, because it is at least as good.
        earlier_timed: How that compares with the model as given in this run; None if it was not
            timed.
    """

    def __init__(
        self,
        request: TuneRequest,
        source: Source,
        provider: SampleProvider,
        folder: RunFolder,
        reporter: ProgressReporter,
        story: Story,
        accuracy: MeasuredAccuracy,
        new_worker: Callable[[str, int], Worker],
        earlier: PreviousResult | None,
        pace: TimeBudget,
    ) -> None:
        self.chosen: State = frozenset()
        self.ranges: Ranges | None = None
        self.keeps_earlier = False
        self.earlier_timed: Timed | None = None
        self._request = request
        self._source = source
        self._provider = provider
        self._folder = folder
        self._reporter = reporter
        self._story = story
        self._accuracy = accuracy
        self._new_worker = new_worker
        self._earlier = earlier
        self._pace = pace
        self._is_foreseen = False

    def finish(
        self,
        space: Space,
        state: State,
        inserters: Mapping[RangeMethod, Inserter],
        blankets: Mapping[str, State],
    ) -> None:
        """Make the best choice a file that may be handed over, if it deserves it.

        Args:
            space: What states mean.
            state: The best choice.
            inserters: Writers of candidates, by where their ranges come from.
            blankets: Choices for the whole model that need no search, by name, fastest first.
        """
        story = self._story
        finalists = self._finalists(space, inserters, blankets)
        result: Finalist | None = None
        if space.placement(state):
            result = self._unless_known(finalists.result(state))
        else:
            story.reason = self._why_float(space)
            if not story.reason:
                result = finalists.float_model()
        shipped = self._hold_final_round(finalists, result)
        story.rejected = finalists.rejected()
        if shipped is not None:
            self._ship(shipped, finalists)
            if shipped.method is not None:
                self.ranges = inserters[shipped.method].encoder.ranges
                self._write_region_models(space, inserters[shipped.method])
        elif self._rival() is not None:
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
        evaluations_s = self._pace.evaluation_s * len(inserters)
        if self._is_foreseen or not state or not self._pace.has_time_for(evaluations_s):
            return
        self._is_foreseen = True
        if evaluations_s > _TOLD_AHEAD_S:
            self._reporter.tell("accuracy", "comparing outputs of the best seed with float")
        finalists = self._finalists(space, inserters, {})
        method = finalists.best_ranges(space.placement(state))
        if finalists.limits(method).sqnr_shortfall(state):
            self._pace.foresee_repair(len(parts_of(space, state)))

    def _finalists(
        self,
        space: Space,
        inserters: Mapping[RangeMethod, Inserter],
        blankets: Mapping[str, State],
    ) -> Finalists:
        return Finalists(
            self._request, self._folder, self._reporter, self._story, self._accuracy, self._pace,
            space, inserters, blankets,
        )  # fmt: skip

    def _unless_known(self, result: Finalist | None) -> Finalist | None:
        """The result, unless an earlier run has timed it and there is no time to do so again."""
        rival = self._rival()
        if result is None or rival is None or rival.placement != result.placement:
            return result
        if self._pace.repair_left_s() >= 0:
            return result
        self._story.reason = (
            "it was timed by an earlier run, and --budget leaves no time to repeat it"
        )
        return None

    def _rival(self) -> PreviousResult | None:
        """The earlier result, if this run would have accepted it as well."""
        earlier = self._earlier
        if earlier is not None and earlier.summary.conditions == self._story.conditions:
            return earlier
        return None

    def _why_float(self, space: Space) -> str:
        """Why float is best; empty if that is worth a try, as the file is not that model."""
        story = self._story
        if not space.groups and story.stopped != INTERRUPTED:
            return story.why_nothing or "nothing of it has a range that it could be quantized with"
        if not story.benchmarks + story.memo_hits:
            if story.stopped == BY_BUDGET:
                return self._pace.needed(self._reporter.elapsed_s)
            return f"nothing was measured before the end ({story.stopped})"
        if story.why_all_failed:
            return f"the engine runs no candidate: {story.why_all_failed.splitlines()[0]}"
        if self._source.reading is not None or self._source.converted_from:
            return ""
        got = f", as far as the search got ({story.stopped})" if story.stopped != FINISHED else ""
        return f"no candidate was faster than the float model{got}"

    def _hold_final_round(self, finalists: Finalists, result: Finalist | None) -> Finalist | None:
        """Time what may be handed over against the model as it was given; the better one ships.

        It must beat what an earlier run had proven, too.
        """
        story, request = self._story, self._request
        blanket = finalists.blanket(result)
        rival = self._rival()
        if rival is not None and result is not None and rival.placement == result.placement:
            rival = None
        models = [each.file for each in (result, blanket) if each is not None]
        if not models:
            return None
        models += [rival.model] if rival is not None else []
        final = FinalRound(result, blanket, self._time(list(dict.fromkeys(models))))
        timed = final.timed.get(rival.model) if rival is not None else final.time_of(result)
        self.earlier_timed = timed if isinstance(timed, Timed) else None
        chosen, reason = final.choose(
            request.config.performance_threshold,
            lambda: finalists.shortfall(blanket) if blanket is not None else "",
        )
        if chosen is not None and rival is not None and _is_behind(chosen, rival, final):
            chosen, reason = None, "what an earlier run found is at least as fast"
        if chosen is not None:
            story.reason = ""
        elif reason:
            lost = f"; {story.lost_to_accuracy}" if story.lost_to_accuracy else ""
            story.reason = reason + lost
        timed = final.time_of(chosen or result or blanket)
        if timed is not None:
            story.baseline_ms, story.final_ms = timed.baseline_ms, timed.final_ms
            story.comparison = timed.comparison
        if blanket is not None:
            most_s = min(request.preset.final_s, self._pace.left_s())
            metric = finalists.metric(blanket, most_s=most_s)
            shortfall = finalists.shortfall(blanket, with_metric=metric is not None)
            story.blanket = final.blanket_record(chosen, shortfall, metric)
        return chosen

    def _time(self, models: Sequence[Path]) -> dict[Path, Timed | str]:
        """Time files in turns with the model as it was given, in fresh processes."""
        reporter, story, pace = self._reporter, self._story, self._pace
        reporter.tell("final", "timing the file against the model that was to be beaten")

        told_s = reporter.elapsed_s

        def new_worker(opening: int) -> Worker:
            nonlocal told_s
            if reporter.elapsed_s - told_s > _TOLD_AHEAD_S:
                told_s = reporter.elapsed_s
                reporter.tell("final", f"opening the files again, in process {opening + 1}")
            worker = self._new_worker(names.ENGINE_LOG, opening)
            reporter.workers.append(worker)
            return worker

        allowance = Allowance(
            timing_s=pace.final_s(len(models)),
            reopening_s=pace.reopening_s(len(models), reporter.elapsed_s + story.earlier_s),
            left_s=pace.left_s,
            baseline_ratio=story.noise.ratio,
            is_real=registry.entry(self._request.engine).measures,
        )
        feeds = next(iter(self._provider.evaluation_samples()))
        timed = time_final(new_worker, self._folder / names.BASELINE, models, feeds, allowance)
        return dict(zip(models, timed, strict=True))

    def _ship(self, shipped: Finalist, finalists: Finalists) -> None:
        """Stage what is handed over, and note what it is."""
        story, folder = self._story, self._folder
        if shipped.file.parent != folder.staged:
            staged = folder.staging()
            for file in shipped.file.parent.iterdir():
                shutil.move(file, staged / file.name)
            story.lost_to_accuracy = ""  # that was about another model
        story.is_shipped = True
        story.placement, self.chosen = shipped.placement, shipped.state
        story.sqnr_db = shipped.sqnr_db
        if shipped.method is not None:
            story.method = shipped.method
        finalists.note_metric(shipped)

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


def _is_behind(chosen: Finalist, rival: PreviousResult, final: FinalRound) -> bool:
    """Whether what an earlier run had proven is another model, and at least as fast."""
    ours, other = final.time_of(chosen), final.timed.get(rival.model)
    if ours is None or not isinstance(other, Timed) or rival.placement == chosen.placement:
        return False
    return other.comparison.ratio >= ours.comparison.ratio
