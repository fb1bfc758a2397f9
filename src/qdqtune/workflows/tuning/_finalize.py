"""From the best choice to what is handed over: accurate, written, and timed once more."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._reopened_comparison import Allowance
from qdqtune.engines._worker import Worker
from qdqtune.records._accuracy import Rejected
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.records._tuning import BY_BUDGET, FINISHED, INTERRUPTED, Blanket
from qdqtune.search._space import State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import MeasuredAccuracy
from qdqtune.workflows.tuning._baseline import Baseline
from qdqtune.workflows.tuning._calibrate import Calibration
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._final_model import (
    Attempt,
    Finalist,
    FinalRound,
    Timed,
    fastest_first,
    time_final,
)
from qdqtune.workflows.tuning._finalists import Finalists
from qdqtune.workflows.tuning._preflight import PATTERN_CACHE
from qdqtune.workflows.tuning._run_records import (
    PreviousResult,
    RunRecords,
    why_not_as_fast,
    why_not_kept,
)
from qdqtune.workflows.tuning._search import SearchOutcome
from qdqtune.workflows.tuning._search_problem import SearchProblem
from qdqtune.workflows.tuning._setup import TuningTarget
from qdqtune.workflows.tuning._subgraph_mode import RAW

_logger = logging.getLogger(__name__)

# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0
# Seeds that measurements led to: no blankets.
_FOUND = (RAW, PATTERN_CACHE)


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


@dataclass(frozen=True)
class Finalizer:
    """Makes the best choice of a search a file that may be handed over, if it deserves it.

    Attributes:
        ctx: The run.
        target: What is tuned.
        records: What is known from earlier runs.
        baseline: What has to be beaten.
        calibration: Ranges.
        problem: What was searched in.
        accuracy: How accurate placements are.
    """

    ctx: RunContext
    target: TuningTarget
    records: RunRecords
    baseline: Baseline
    calibration: Calibration
    problem: SearchProblem
    accuracy: MeasuredAccuracy

    def finalize(self, outcome: SearchOutcome, finalists: Finalists) -> Finalized:
        """Write what is accurate enough, time it against the model as given, and choose.

        Args:
            outcome: What the search came to.
            finalists: Makes choices into files.
        """
        space, seeds = self.problem.space, self.problem.seeds
        rules = {name: state for name, state in seeds.items() if name not in _FOUND}
        blankets = fastest_first(space, rules, outcome.seeds)
        attempt = self._attempt(outcome, finalists)
        final, found = self._hold_final_round(attempt, finalists, blankets)
        found = replace(found, rejected=finalists.rejected(outcome.state, blankets))
        if found.shipped is not None:
            return self._ship(found, finalists)
        if self._rival() is not None:
            return self._keep_earlier(found, self._time_of_earlier(attempt.finalist, final))
        return found

    def _attempt(self, outcome: SearchOutcome, finalists: Finalists) -> Attempt:
        if self.problem.space.placement(outcome.state):
            return self._unless_known(finalists.result(outcome.state))
        why_float = self._why_float(outcome)
        return Attempt(None, why_float) if why_float else finalists.float_model()

    def _unless_known(self, attempt: Attempt) -> Attempt:
        """The result, unless an earlier run has timed it and there is no time to do so again."""
        rival, result = self._rival(), attempt.finalist
        if result is None or rival is None or rival.placement != result.placement:
            return attempt
        if self.ctx.budget.repair_left_s() >= 0:
            return attempt
        why = "it was timed by an earlier run, and --budget leaves no time to repeat it"
        return replace(attempt, finalist=None, reason=why)

    def _rival(self) -> PreviousResult | None:
        """The earlier result, if this run would have accepted it as well."""
        earlier = self.records.earlier
        if earlier is not None and earlier.summary.conditions == self.calibration.conditions:
            return earlier
        return None

    def _other_rival(self, result: Finalist | None) -> PreviousResult | None:
        """The same, if it is not what this run found as well."""
        rival = self._rival()
        is_same = rival is not None and result is not None and rival.placement == result.placement
        return None if is_same else rival

    def _why_float(self, outcome: SearchOutcome) -> str:
        """Why float is best; empty if that is worth a try, as the file is not that model."""
        stopped, source = outcome.stopped, self.target.source
        if not self.problem.space.groups and stopped != INTERRUPTED:
            nothing = "nothing of it has a range that it could be quantized with"
            return self.problem.preparation.why_nothing or nothing
        if not outcome.benchmarks + outcome.memo_hits:
            if stopped == BY_BUDGET:
                return self.ctx.budget.needed(self.ctx.reporter.elapsed_s)
            return f"nothing was measured before the end ({stopped})"
        if outcome.why_all_failed:
            return f"the engine runs no candidate: {outcome.why_all_failed.splitlines()[0]}"
        if source.reading is not None or source.converted_from:
            return ""
        got = f", as far as the search got ({stopped})" if stopped != FINISHED else ""
        return f"no candidate was faster than the float model{got}"

    def _hold_final_round(
        self, attempt: Attempt, finalists: Finalists, blankets: Mapping[str, State]
    ) -> tuple[FinalRound, Finalized]:
        """Time what may be handed over against the model as it was given; the better one ships.

        It must beat what an earlier run had proven, too.
        """
        request, result, lost = self.target.request, attempt.finalist, attempt.lost_to_accuracy
        blanket = finalists.blanket(result, blankets)
        rival = self._other_rival(result)
        models = [each.file for each in (result, blanket) if each is not None]
        if not models:
            nothing = Finalized(attempt.reason, earlier=self.records.earlier, lost_to_accuracy=lost)
            return FinalRound(None, None, {}), nothing
        models += [rival.model] if rival is not None else []
        final = FinalRound(result, blanket, self._time(list(dict.fromkeys(models))))
        chosen, reason = final.choose(
            request.config.performance_threshold,
            lambda: finalists.shortfall(blanket) if blanket is not None else "",
        )
        if chosen is not None and rival is not None and _is_behind(chosen, rival, final):
            chosen, reason = None, "what an earlier run found is at least as fast"
        if chosen is None:
            reason = reason + (f"; {lost}" if lost else "") if reason else attempt.reason
        record = None
        if blanket is not None:
            most_s = min(request.preset.final_s, self.ctx.budget.left_s())
            metric = finalists.metric(blanket, most_s=most_s)
            shortfall = finalists.shortfall(blanket, with_metric=metric is not None)
            record = final.blanket_record(chosen, shortfall, metric)
        written = blanket or result
        return final, Finalized(
            "" if chosen is not None else reason,
            chosen,
            self.records.earlier,
            timed=final.time_of(chosen or result or blanket),
            float_sqnr_db=written.float_sqnr_db if written is not None else None,
            lost_to_accuracy=lost,
            blanket=record,
        )

    def _time(self, models: Sequence[Path]) -> dict[Path, Timed | str]:
        """Time files in turns with the model as it was given, in fresh processes."""
        reporter, budget = self.ctx.reporter, self.ctx.budget
        reporter.tell("final", "timing the file against the model that was to be beaten")

        told_s = reporter.elapsed_s

        def new_worker(opening: int) -> Worker:
            nonlocal told_s
            if reporter.elapsed_s - told_s > _TOLD_AHEAD_S:
                told_s = reporter.elapsed_s
                reporter.tell("final", f"opening the files again, in process {opening + 1}")
            worker = self.ctx.engines.restarted(opening)
            reporter.workers.append(worker)
            return worker

        spent_s = reporter.elapsed_s + self.records.journal.earlier_s
        allowance = Allowance(
            timing_s=budget.final_s(len(models)),
            reopening_s=budget.reopening_s(len(models), spent_s),
            left_s=budget.left_s,
            baseline_ratio=self.baseline.noise.ratio,
            is_real=registry.entry(self.target.request.engine).measures,
        )
        feeds = next(iter(self.target.provider.evaluation_samples()))
        timed = time_final(new_worker, self.ctx.folder / names.BASELINE, models, feeds, allowance)
        return dict(zip(models, timed, strict=True))

    def _ship(self, found: Finalized, finalists: Finalists) -> Finalized:
        """Stage what is handed over, and note what it is."""
        shipped, folder = found.shipped, self.ctx.folder
        assert shipped is not None
        if shipped.file.parent != folder.staged:
            staged = folder.staging()
            for file in shipped.file.parent.iterdir():
                shutil.move(file, staged / file.name)
            found = replace(found, lost_to_accuracy="")  # that was about another model
        found = replace(found, metric=finalists.metric(shipped))
        if shipped.method is None:
            return found
        self._write_region_models(shipped.state, shipped.method)
        ranges = self.calibration.inserters[shipped.method].encoder.ranges
        return replace(found, ranges=ranges)

    def _write_region_models(self, chosen: State, method: RangeMethod) -> None:
        """Write how the model grew together: pattern by pattern, what was chosen up to there."""
        space, inserter = self.problem.space, self.calibration.inserters[method]
        self.ctx.folder.remove_region_models()
        so_far: set[int] = set()
        for view in self.calibration.grouping.views:
            own = set(space.patterns.get(view.pattern.signature, ())) & chosen
            if own:
                so_far |= own
                file = names.REGION_MODELS.format(view.first.id, view.first.level)
                inserter.write(space.placement(frozenset(so_far)), Path(file).stem)

    def _time_of_earlier(self, result: Finalist | None, final: FinalRound) -> Timed | None:
        """How the earlier result compares with the model as given in this run."""
        rival = self._other_rival(result)
        timed = final.timed.get(rival.model) if rival is not None else final.time_of(result)
        return timed if isinstance(timed, Timed) else None

    def _keep_earlier(self, found: Finalized, timed: Timed | None) -> Finalized:
        """Keep an earlier result, unless it is not what its summary says."""
        earlier, request = self.records.earlier, self.target.request
        assert earlier is not None
        room = self.ctx.folder.scratch
        why = why_not_kept(earlier, self.accuracy.evaluator, room, request.config.min_sqnr_db)
        why = why or why_not_as_fast(earlier, timed, request.config.performance_threshold)
        if why:
            reason = f"the result that lay in the folder is not what it claims: {why}"
            _logger.warning("%s", reason)
            return replace(found, reason=reason, earlier=None)
        if timed is not None and earlier.is_slower_than_claimed(timed.comparison):
            _logger.warning(
                "the result of an earlier run is %.3fx as fast as float, not %.3fx as its summary "
                "says: the summary is corrected",
                timed.comparison.ratio, earlier.claim.speedup,
            )  # fmt: skip
            earlier = earlier.timed_again(timed)
        return replace(found, earlier=earlier, keeps_earlier=True)


def _is_behind(chosen: Finalist, rival: PreviousResult, final: FinalRound) -> bool:
    """Whether what an earlier run had proven is another model, and at least as fast."""
    ours, other = final.time_of(chosen), final.timed.get(rival.model)
    if ours is None or not isinstance(other, Timed) or rival.placement == chosen.placement:
        return False
    return other.comparison.ratio >= ours.comparison.ratio
