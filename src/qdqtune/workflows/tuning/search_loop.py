"""The search: it asks, the engine answers, until one of them has had enough."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from qdqtune.autotune.search.space import State
from qdqtune.autotune.search.trial import SEEDS, Score, Trial, speedup_of
from qdqtune.records.errors import EngineError
from qdqtune.records.tuning import BY_BUDGET, BY_COUNT, ENGINE_FAILED, FINISHED, INTERRUPTED
from qdqtune.workflows.tuning.baseline import Baseline
from qdqtune.workflows.tuning.calibrate import Calibration
from qdqtune.workflows.tuning.candidate_evaluator import CandidateEvaluator
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.finalists import Finalists
from qdqtune.workflows.tuning.run_records import RunRecords
from qdqtune.workflows.tuning.search_problem import SearchProblem

_logger = logging.getLogger(__name__)

_FLOAT: State = frozenset()
# A step that takes longer is told before it begins.
_TOLD_AHEAD_S = 2.0


@dataclass(frozen=True)
class SearchOutcome:
    """What a search came to.

    Attributes:
        state: The best choice.
        stopped: Why it ended, as the summary has it.
        seeds: Speedups of the whole-model choices that were tried, by name.
        benchmarks: Candidates built and timed.
        failed: Those that the engine refused.
        memo_hits: How often an outcome was known already.
        why_all_failed: Why the last one failed, if all did.
    """

    state: State = _FLOAT
    stopped: str = FINISHED
    seeds: Mapping[str, float] = field(default_factory=dict)
    benchmarks: int = 0
    failed: int = 0
    memo_hits: int = 0
    why_all_failed: str = ""


def search(
    ctx: RunContext,
    records: RunRecords,
    baseline: Baseline,
    calibration: Calibration,
    evaluator: CandidateEvaluator,
    finalists: Finalists,
) -> SearchOutcome:
    """Let the strategy ask and the engine answer; what is known by then is kept in any case.

    Args:
        ctx: The run.
        records: Where the state goes.
        baseline: The float model.
        calibration: What can be quantized.
        evaluator: Answers.
        finalists: Foresees whether the best so far will need a repair of its accuracy.
    """
    problem, strategy = evaluator.problem, evaluator.problem.strategy
    outcome = SearchOutcome(stopped=problem.preparation.stopped)
    if outcome.stopped == INTERRUPTED:
        _logger.warning("interrupted: what was found out is kept; the same command goes on")
        return replace(outcome, state=strategy.incumbent)

    def take_snapshot() -> None:
        best = evaluator.candidate_of(strategy.incumbent)
        records.take_snapshot(evaluator, calibration.grouping, baseline.latency_ms, best)

    ctx.reporter.search_begins()
    if not records.snapshots.exist:
        take_snapshot()
    stopped, seeds = outcome.stopped, dict(outcome.seeds)
    try:
        while (trial := strategy.ask()) is not None:
            if trial.stage != SEEDS and evaluator.target.request.config.budget_s is not None:
                finalists.foresee_repair(strategy.incumbent)
            scores, is_all = _answer(ctx, evaluator, trial)
            if not is_all:
                stopped = BY_BUDGET
            if not scores:
                break
            problem.tell(scores)
            if trial.reference == _FLOAT:
                seeds.update(_seed_speedups(problem, trial, scores))
            if records.snapshots.is_due:
                take_snapshot()
            _tell_trial(ctx, evaluator, trial, scores)
            if not is_all:
                break
    except KeyboardInterrupt:
        stopped = INTERRUPTED
        _logger.warning("interrupted: finishing the best model so far; once more to abort")
    except EngineError as error:
        stopped = ENGINE_FAILED
        _logger.warning("%s Finishing the best model so far.", error)
    if stopped == FINISHED and strategy.is_cut_short:
        stopped = BY_COUNT
    return SearchOutcome(
        strategy.incumbent, stopped, seeds, evaluator.benchmarks, evaluator.failed,
        records.journal.memo_hits, evaluator.why_all_failed,
    )  # fmt: skip


def _answer(
    ctx: RunContext, evaluator: CandidateEvaluator, trial: Trial
) -> tuple[list[Score], bool]:
    """Measure what a trial asks for, as far as there is time.

    What is known takes none. Of the whole-model choices that a search begins with, as many are
    tried as possible; everything after them is tried whole or not at all.

    Returns:
        The scores, none if there is no time, and whether there was time for all.
    """
    missing, pace = len(evaluator.missing(trial)), ctx.pace
    if not missing:
        return evaluator.answer(trial), True
    is_first = trial.stage == SEEDS
    fitting = pace.fitting(missing, trial.effort, least=is_first)
    if fitting < missing and not (is_first and fitting):
        return [], False
    expected_s, strategy = pace.trial_s(fitting, trial.effort), evaluator.problem.strategy
    if expected_s > _TOLD_AHEAD_S:
        ctx.reporter.tell(
            trial.stage,
            f"building and timing {_candidates(fitting)}, about {expected_s:.0f} s",
            benchmarks=evaluator.benchmarks, known=evaluator.journal.memo_hits,
            planned=strategy.planned, speedup=speedup_of(strategy.gain),
        )  # fmt: skip
    began_s = ctx.reporter.elapsed_s
    scores = evaluator.answer(trial, fitting)
    pace.saw_trial(fitting, trial.effort, ctx.reporter.elapsed_s - began_s)
    return scores, fitting == missing


def _seed_speedups(
    problem: SearchProblem, trial: Trial, scores: Sequence[Score]
) -> dict[str, float]:
    key = problem.space.key
    gains = dict(zip(map(key, trial.candidates), scores, strict=True))
    return {
        label: speedup_of(gains[key(state)].gain)
        for label, state in problem.seeds.items()
        if key(state) in gains and gains[key(state)].failure is None
    }


def _tell_trial(
    ctx: RunContext, evaluator: CandidateEvaluator, trial: Trial, scores: Sequence[Score]
) -> None:
    best = max((score.gain for score in scores), default=-math.inf)
    change = f"best {100 * math.expm1(best):+.1f} %" if math.isfinite(best) else "all refused"
    ctx.reporter.tell(
        trial.stage,
        f"{_candidates(len(scores))}, {change}",
        benchmarks=evaluator.benchmarks,
        known=evaluator.journal.memo_hits,
        planned=evaluator.problem.strategy.planned,
        speedup=speedup_of(evaluator.problem.strategy.gain),
        rest_s=ctx.pace.end_s(),
    )


def _candidates(count: int) -> str:
    return f"{count} candidate{'s' * (count != 1)}"
