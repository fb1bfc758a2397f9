"""The interface of modes, region mode, and the loop that asks a strategy and tells it scores."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import EngineError
from qdqtune.records._tuning import BY_BUDGET, BY_COUNT, ENGINE_FAILED, FINISHED, INTERRUPTED
from qdqtune.search._space import Space, State
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import SEEDS, Score, SearchTask, Trial, speedup_of
from qdqtune.workflows.tuning._baseline import Baseline
from qdqtune.workflows.tuning._calibrate import Calibration
from qdqtune.workflows.tuning._candidate_evaluator import CandidateEvaluator
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._finalists import Finalists
from qdqtune.workflows.tuning._preflight import latency_shares, seeds_of
from qdqtune.workflows.tuning._run_records import RunRecords
from qdqtune.workflows.tuning._search_problem import SearchProblem
from qdqtune.workflows.tuning._setup import TuningTarget

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Mode(ABC):
    """A way to search.

    Attributes:
        ctx: The run.
        target: What is tuned.
        records: What is known, and where what is found out goes.
        baseline: The float model.
    """

    ctx: RunContext
    target: TuningTarget
    records: RunRecords
    baseline: Baseline

    @abstractmethod
    def profile(self) -> None:
        """Find out about the float model what has to be known before calibration."""

    @abstractmethod
    def prepare(self, planner: QuantizationPlanner, calibration: Calibration) -> SearchProblem:
        """What can be chosen, and who chooses; nothing if there was no time to find it out."""


class RegionMode(Mode):
    """Every group of ops is a choice; the engine's profile of the float model says which matter."""

    def profile(self) -> None:
        """Find out where the float model's time goes, unless that is known."""
        journal, target, baseline = self.records.journal, self.target, self.baseline
        if journal.shares is None:
            told = "asking the engine where the float model's time goes"
            self.ctx.reporter.tell("profile", told)
            shares = latency_shares(
                self.ctx.engines.engine, baseline.file, target.feeds, baseline.base.index,
                target.provider.shapes,
            )  # fmt: skip
            journal.keep_shares(shares)

    def prepare(self, planner: QuantizationPlanner, calibration: Calibration) -> SearchProblem:
        """All groups, and a search among them."""
        request, grouping = self.target.request, calibration.grouping
        space = Space(planner, grouping.groups, self.records.journal.shares or {})
        seeds = seeds_of(space, self.target.given, grouping)
        limits = request.preset.limits(
            len(space.groups), grouping.patterns,
            request.config.max_benchmarks, request.config.schemes_per_region,
        )  # fmt: skip
        task = SearchTask(space, seeds, limits, request.config.seed)
        return SearchProblem(space, make_strategy(task, request.config.strategy), seeds)


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
        return replace(outcome, state=strategy.best)

    def take_snapshot() -> None:
        best = evaluator.candidate_of(strategy.best)
        records.take_snapshot(evaluator, calibration.grouping, baseline.latency_ms, best)

    ctx.reporter.search_begins()
    if not records.snapshots.exist:
        take_snapshot()
    stopped, seeds = outcome.stopped, dict(outcome.seeds)
    try:
        for trial in strategy.trials():
            if trial.stage != SEEDS and evaluator.target.request.config.budget_s is not None:
                finalists.foresee_repair(strategy.best)
            scores, is_all = _answer(ctx, evaluator, trial)
            if not is_all:
                stopped = BY_BUDGET
            if not scores:
                break
            problem.tell(trial, scores)
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
        strategy.best, stopped, seeds, evaluator.benchmarks, evaluator.failed,
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
    missing, budget = len(evaluator.missing(trial)), ctx.budget
    if not missing:
        return evaluator.answer(trial), True
    is_first = trial.stage == SEEDS
    fitting = budget.fitting(missing, trial.effort, least=is_first)
    if fitting < missing and not (is_first and fitting):
        return [], False
    expected_s, strategy = budget.trial_s(fitting, trial.effort), evaluator.problem.strategy
    if expected_s > _TOLD_AHEAD_S:
        ctx.reporter.tell(
            trial.stage,
            f"building and timing {_candidates(fitting)}, about {expected_s:.0f} s",
            benchmarks=evaluator.benchmarks, known=evaluator.journal.memo_hits,
            planned=strategy.planned, speedup=speedup_of(strategy.gain),
        )  # fmt: skip
    began_s = ctx.reporter.elapsed_s
    scores = evaluator.answer(trial, fitting)
    budget.saw_trial(fitting, trial.effort, ctx.reporter.elapsed_s - began_s)
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
        rest_s=ctx.budget.end_s(),
    )


def _candidates(count: int) -> str:
    return f"{count} candidate{'s' * (count != 1)}"
