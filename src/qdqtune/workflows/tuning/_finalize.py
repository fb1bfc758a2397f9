"""Turn the best choice into an accurate file, and time it once more before it is the result."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.engines._comparison import Allowance
from qdqtune.qdq._insert import Inserter
from qdqtune.records._front import FrontPoint
from qdqtune.records._tuning import BY_BUDGET, FINISHED, INTERRUPTED
from qdqtune.search._space import Space, State
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._baseline import Baseline
from qdqtune.workflows.tuning._final_check import (
    PreviousResult,
    Timed,
    time_final,
    why_not_kept,
    why_not_shipped,
)
from qdqtune.workflows.tuning._final_round import Finalist, FinalRound, Objective, Role
from qdqtune.workflows.tuning._finalists import Finalists, Finalized
from qdqtune.workflows.tuning._front import FrontFinder
from qdqtune.workflows.tuning._modes import RAW
from qdqtune.workflows.tuning._preflight import ALL_DYNAMIC, PATTERN_CACHE, STATIC_BLANKETS
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._search import CandidateEvaluator, SearchOutcome
from qdqtune.workflows.tuning._time_budget import TOLD_AHEAD_S

_logger = logging.getLogger(__name__)

# Seeds that result from measurements, so they are not blankets.
_FOUND = (RAW, PATTERN_CACHE)
# How much slower dynamic quantization may be than static blankets to set the accuracy limit.
_CONTENDS = 1.05


def fastest_first(
    space: Space, seeds: Mapping[str, State], speedups: Mapping[str, float]
) -> dict[str, State]:
    """Sort whole-model choices by their speedup in the search, without duplicates.

    Args:
        space: The search space that choices refer to.
        seeds: The choices, by name.
        speedups: Their measured speedups; those that failed are missing.
    """
    found: dict[str, tuple[str, State]] = {}
    timed = [name for name in seeds if name in speedups]
    for name in sorted(timed, key=lambda each: -speedups[each]):
        if space.placement(seeds[name]):
            found.setdefault(space.key(seeds[name]), (name, seeds[name]))
    return dict(found.values())


def _dynamic_contends(speedups: Mapping[str, float]) -> bool:
    """Whether dynamic quantization alone is about as fast as static quantization by blankets."""
    rivals = (speedup for name, speedup in speedups.items() if name in STATIC_BLANKETS)
    return _CONTENDS * speedups.get(ALL_DYNAMIC, 0.0) >= max(rivals, default=math.inf)


@dataclass(frozen=True)
class Finalizer:
    """Decides on the result: the best choice, a blanket, an earlier result or nothing new.

    Attributes:
        run: The run.
        finalists: Turns choices into files.
        evaluator: Has the search problem, and known results of earlier runs.
        baseline: The model to beat.
    """

    run: TuningRun
    finalists: Finalists
    evaluator: CandidateEvaluator
    baseline: Baseline

    def finalize(self, outcome: SearchOutcome) -> Finalized:
        """Write the accurate models, time them against the original model, and choose.

        Args:
            outcome: The outcome of the search.
        """
        problem, finalists = self.evaluator.problem, self.finalists
        rules = {name: state for name, state in problem.seeds.items() if name not in _FOUND}
        blankets = fastest_first(problem.space, rules, outcome.seeds)
        rival = self._rival()
        if _dynamic_contends(outcome.seeds):
            finalists.limit_to_dynamic(problem.seeds[ALL_DYNAMIC])
        attempt = self._attempt(outcome, rival)
        result = attempt.shipped
        rivals = [
            result,
            finalists.blanket(result, blankets),
            finalists.with_smoothed_inputs(outcome.fastest, result),
            *(self._finder.finalists_beyond(result) if result is not None else ()),
            finalists.uncalibrated(result, self.evaluator.fastest_without_ranges()),
        ]
        entries = [each for each in rivals if each is not None]
        is_rival = rival is not None and rival.placement == (result and result.placement)
        models = [each.file for each in entries]
        if models and rival is not None and not is_rival:
            models.append(rival.file)
        final = FinalRound(entries, self._time(list(dict.fromkeys(models))))
        found = self._chosen(attempt, final, rival)
        left_float = finalists.left_float if found.lost_to_accuracy else frozenset()
        rejected = finalists.rejected(outcome.fastest, blankets)
        found = replace(found, rejected=rejected, left_float=left_float)
        if found.shipped is not None:
            return self._ship(found, found.shipped)
        if rival is None:
            return found
        return self._keep_earlier(found, rival, final.time_of(result if is_rival else rival))

    @property
    def _finder(self) -> FrontFinder:
        return FrontFinder(self.evaluator, self.finalists)

    def _attempt(self, outcome: SearchOutcome, rival: PreviousResult | None) -> Finalized:
        """Return the best choice as a file, before it is timed."""
        if not self.evaluator.problem.space.placement(outcome.state):
            why_float = self._why_float(outcome)
            if not why_float:
                return self.finalists.float_model()
            return Finalized(why_float, lost_to_accuracy=self.finalists.lost)
        attempt = self.finalists.result(outcome.state)
        is_known = rival is not None and rival.placement == attempt.placement
        if attempt.shipped is None or not is_known or self.run.budget.repair_left_s() >= 0:
            return attempt
        why = "it was timed by an earlier run, and --budget leaves no time to repeat it"
        return replace(attempt, shipped=None, reason=why)

    def _rival(self) -> PreviousResult | None:
        """Return the earlier result, if this run would have accepted it as well."""
        earlier, wanted = self.run.earlier, self.evaluator.calibration.conditions
        return earlier if earlier is not None and earlier.summary.conditions == wanted else None

    def _why_float(self, outcome: SearchOutcome) -> str:
        """Return why float is best; empty if it is worth timing, since the file differs from it."""
        stopped, source = outcome.stopped, self.run.source
        problem = self.evaluator.problem
        if not problem.space.groups and stopped != INTERRUPTED:
            nothing = "nothing of it has a range that it could be quantized with"
            return problem.preparation.why_nothing or nothing
        if not self.evaluator.benchmarks + self.run.journal.memo_hits:
            if stopped == BY_BUDGET:
                return self.run.budget.needed(self.run.reporter.elapsed_s)
            return f"nothing was measured before the end ({stopped})"
        if failure := self.evaluator.last_failure:
            return f"the engine runs no candidate: {failure.splitlines()[0]}"
        if self.finalists.lost:
            return f"what is faster is not accurate enough: {self.finalists.lost}"
        if source.reading is not None or source.converted_from:
            return ""
        got = f", as far as the search got ({stopped})" if stopped != FINISHED else ""
        return f"no candidate was faster than the float model{got}"

    def _chosen(
        self, attempt: Finalized, final: FinalRound, rival: PreviousResult | None
    ) -> Finalized:
        """Choose the better of the timed models, if it also beats the earlier result."""
        finalists, request, lost = self.finalists, self.run.request, attempt.lost_to_accuracy
        result, blanket = final.entry(Role.RESULT), final.entry(Role.BLANKET)
        objective = Objective.of(request.config)
        chosen, reason = final.choose(objective, finalists.shortfall, finalists.metric)
        if chosen is not None and rival is not None and rival.placement != chosen.placement:
            ours, other = final.time_of(chosen), final.time_of(rival)
            if ours and other and other.comparison.ratio >= ours.comparison.ratio:
                chosen, reason = None, "what an earlier run found is at least as fast"
        if chosen is None:
            reason = reason + (f"; {lost}" if lost else "") if reason else attempt.reason

        def metric(entry: Finalist) -> float | None:
            most_s = min(request.preset.final_s, self.run.budget.left_s())
            return finalists.metric(entry, most_s=most_s)

        def shortfall(entry: Finalist) -> str:
            return finalists.shortfall(entry, with_metric=metric(entry) is not None)

        record, points = None, tuple[FrontPoint, ...]()
        if blanket is not None:
            record = final.blanket_record(chosen, shortfall(blanket), metric(blanket))
        if chosen is not None:
            front = final.front(objective, chosen, shortfall, metric)
            points = self._finder.points(final, front, chosen)
        written = blanket or result
        method = written.method if written is not None else None
        return replace(
            attempt,
            reason="" if chosen is not None else reason,
            shipped=chosen,
            earlier=self.run.earlier,
            timed=final.time_of(chosen or result or blanket),
            float_sqnr_db=finalists.accuracy[method].float_sqnr_db() if method else None,
            blanket=record,
            front=points,
        )

    def _time(self, models: Sequence[Path]) -> dict[Path, Timed | str]:
        """Time files interleaved with the original model, in fresh processes."""
        if not models:
            return {}
        folder, reporter, budget = self.run.folder, self.run.reporter, self.run.budget
        reporter.tell("final", "timing the file against the model that was to be beaten")
        told_s = reporter.elapsed_s

        def told(done: int) -> None:
            nonlocal told_s
            if reporter.elapsed_s - told_s > TOLD_AHEAD_S:
                told_s = reporter.elapsed_s
                reporter.tell("final", f"opening the files again, in process {done + 1}")

        spent_s = reporter.elapsed_s + self.run.journal.earlier_s
        allowance = Allowance(
            timing_s=budget.final_s(len(models)),
            reopening_s=budget.reopening_s(len(models), spent_s),
            left_s=budget.left_s,
            baseline_ratio=self.baseline.noise.ratio,
            is_real=not self.evaluator.is_simulated,
        )
        feeds = next(iter(self.run.provider.evaluation_samples()))
        timed = time_final(self.run.pool, folder / names.BASELINE, models, feeds, allowance, told)
        return dict(zip(models, timed, strict=True))

    def _ship(self, found: Finalized, shipped: Finalist) -> Finalized:
        """Stage the result, and record what it is."""
        folder = self.run.folder
        if shipped.file.parent != folder.staged:
            staged = folder.staging()
            for file in shipped.file.parent.iterdir():
                shutil.move(file, staged / file.name)
        if shipped.role is not Role.RESULT:
            # It was about another model.
            found = replace(found, lost_to_accuracy="", left_float=frozenset())
        if shipped.method is not None:
            inserter = self.finalists.accuracy_of(shipped).inserter
            self._write_region_models(shipped.state, inserter)
            self.evaluator.write_with(inserter)
            found = replace(
                found,
                corrected_biases=len(inserter.corrected(shipped.placement)),
                smoothed_inputs=len(inserter.smoothed(shipped.placement)),
            )
        return replace(found, metric=self.finalists.metric(shipped))

    def _write_region_models(self, chosen: State, inserter: Inserter) -> None:
        """Write intermediate models: pattern by pattern, with the choices so far."""
        space, calibration = self.evaluator.problem.space, self.evaluator.calibration
        self.run.folder.remove_region_models()
        so_far: set[int] = set()
        for view in calibration.grouping.views:
            own = set(space.patterns.get(view.pattern.signature, ())) & chosen
            if own:
                so_far |= own
                file = names.REGION_MODELS.format(view.first.id, view.first.level)
                placement = space.placement(frozenset(so_far))
                inserter.write(placement, Path(file).stem)

    def _keep_earlier(
        self, found: Finalized, earlier: PreviousResult, timed: Timed | None
    ) -> Finalized:
        """Keep an earlier result, unless it does not match its summary.

        Args:
            found: The outcome of this run.
            earlier: The result.
            timed: Its comparison with the original model in this run.
        """
        config = self.run.request.config
        evaluation = next(iter(self.finalists.accuracy.values())).evaluation
        why = why_not_kept(
            earlier, evaluation.evaluator, self.run.folder.scratch, config.min_sqnr_db
        )
        if not why and timed is not None and earlier.is_slower_than_claimed(timed.comparison):
            ratio, claimed = timed.comparison.ratio, earlier.claim.speedup
            slower = f"{ratio:.3f}x as fast as float, not {claimed:.3f}x"
            if why_not_shipped(timed.comparison, config.performance_threshold):
                why = f"it is {slower}"
            else:
                _logger.warning(
                    "the result of an earlier run is %s as its summary says: the summary is "
                    "corrected",
                    slower,
                )
                earlier = earlier.timed_again(timed)
        if why:
            reason = f"the result that lay in the folder is not what it claims: {why}"
            _logger.warning("%s", reason)
            return replace(found, reason=reason, earlier=None)
        return replace(found, earlier=earlier, keeps_earlier=True)
