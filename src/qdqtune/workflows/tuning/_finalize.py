"""Make the best choice a file that is accurate, and time it once more before it is handed over."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._reopened_comparison import Allowance
from qdqtune.engines._worker import Worker
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._tuning import BY_BUDGET, FINISHED, INTERRUPTED, Blanket
from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._baseline import Baseline
from qdqtune.workflows.tuning._calibrate import Calibration
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._final_check import Timed, time_final, why_not_shipped
from qdqtune.workflows.tuning._finalists import Finalist, Finalists, Finalized
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
class FinalRound:
    """The entries of the last comparison, and its outcome.

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
        """Choose what is handed over: never a result that the blanket is known to beat.

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


@dataclass(frozen=True)
class Finalizer:
    """Decides what is handed over: the best choice, a blanket, an earlier result or nothing new.

    Attributes:
        finalists: Makes choices into files.
        records: What is known from earlier runs.
        baseline: What has to be beaten.
        calibration: Ranges.
        problem: What was searched in.
    """

    finalists: Finalists
    records: RunRecords
    baseline: Baseline
    calibration: Calibration
    problem: SearchProblem

    @property
    def ctx(self) -> RunContext:
        """The run."""
        return self.finalists.ctx

    @property
    def target(self) -> TuningTarget:
        """What is tuned."""
        return self.finalists.target

    def finalize(self, outcome: SearchOutcome) -> Finalized:
        """Write what is accurate enough, time it against the model as given, and choose.

        Args:
            outcome: What the search came to.
        """
        space, seeds = self.problem.space, self.problem.seeds
        rules = {name: state for name, state in seeds.items() if name not in _FOUND}
        blankets = fastest_first(space, rules, outcome.seeds)
        attempt = self._attempt(outcome)
        final, found = self._hold_final_round(attempt, blankets)
        found = replace(found, rejected=self.finalists.rejected(outcome.state, blankets))
        if found.shipped is not None:
            return self._ship(found)
        rival = self._rival()
        if rival is None:
            return found
        other = self._other_rival(attempt.shipped)
        timed = final.time_of(attempt.shipped) if other is None else final.timed.get(rival.model)
        return self._keep_earlier(found, rival, timed if isinstance(timed, Timed) else None)

    def _attempt(self, outcome: SearchOutcome) -> Finalized:
        """What the best choice comes to, before it is timed."""
        if not self.problem.space.placement(outcome.state):
            why_float = self._why_float(outcome)
            return Finalized(why_float) if why_float else self.finalists.float_model()
        attempt, rival = self.finalists.result(outcome.state), self._rival()
        is_known = rival is not None and rival.placement == attempt.placement
        if attempt.shipped is None or not is_known or self.ctx.budget.repair_left_s() >= 0:
            return attempt
        why = "it was timed by an earlier run, and --budget leaves no time to repeat it"
        return replace(attempt, shipped=None, reason=why)

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
        self, attempt: Finalized, blankets: Mapping[str, State]
    ) -> tuple[FinalRound, Finalized]:
        """Time what may be handed over against the model as it was given; the better one ships.

        It must beat what an earlier run had proven, too.
        """
        finalists, request = self.finalists, self.target.request
        result, lost = attempt.shipped, attempt.lost_to_accuracy
        attempt = replace(attempt, shipped=None, earlier=self.records.earlier)
        blanket = finalists.blanket(result, blankets)
        rival = self._other_rival(result)
        models = [each.file for each in (result, blanket) if each is not None]
        if not models:
            return FinalRound(None, None, {}), attempt
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
        return final, replace(
            attempt,
            reason="" if chosen is not None else reason,
            shipped=chosen,
            timed=final.time_of(chosen or result or blanket),
            float_sqnr_db=written.float_sqnr_db if written is not None else None,
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

    def _ship(self, found: Finalized) -> Finalized:
        """Stage what is handed over, and note what it is."""
        shipped, folder = found.shipped, self.ctx.folder
        assert shipped is not None
        if shipped.file.parent != folder.staged:
            staged = folder.staging()
            for file in shipped.file.parent.iterdir():
                shutil.move(file, staged / file.name)
            found = replace(found, lost_to_accuracy="")  # that was about another model
        found = replace(found, metric=self.finalists.metric(shipped))
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

    def _keep_earlier(
        self, found: Finalized, earlier: PreviousResult, timed: Timed | None
    ) -> Finalized:
        """Keep an earlier result, unless it is not what its summary says.

        Args:
            found: What came of this run.
            earlier: The result.
            timed: How it compares with the model as given in this run.
        """
        config, accuracy = self.target.request.config, self.finalists.accuracy
        why = why_not_kept(
            earlier, accuracy.evaluator, self.ctx.folder.scratch, config.min_sqnr_db
        ) or why_not_as_fast(earlier, timed, config.performance_threshold)
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
