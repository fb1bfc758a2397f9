"""One tuning run, from the model to the file that is handed over."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping

from qdqtune.config import REGION, SUBGRAPH
from qdqtune.records.tuning import INTERRUPTED, TuneResult
from qdqtune.workflows.sample_provider import SampleProvider
from qdqtune.workflows.source_model import Source
from qdqtune.workflows.tuning.baseline import Baseline, measure_baseline
from qdqtune.workflows.tuning.calibrate import calibrate, find_quantizable
from qdqtune.workflows.tuning.candidate_evaluator import CandidateEvaluator
from qdqtune.workflows.tuning.commit import commit
from qdqtune.workflows.tuning.context import RunContext, open_engines
from qdqtune.workflows.tuning.defer_interrupts import defer_interrupts
from qdqtune.workflows.tuning.finalists import Finalists
from qdqtune.workflows.tuning.finalize import Finalized, Finalizer
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.measured_accuracy import MeasuredAccuracy
from qdqtune.workflows.tuning.modes import Mode
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.region_mode import RegionMode
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.run_records import RunRecords, open_records
from qdqtune.workflows.tuning.search_loop import SearchOutcome, search
from qdqtune.workflows.tuning.setup import TuningTarget, setup
from qdqtune.workflows.tuning.snapshot import Candidate
from qdqtune.workflows.tuning.subgraph_mode import SubgraphMode
from qdqtune.workflows.tuning.summarize import RunResult
from qdqtune.workflows.tuning.time_budget import TimeBudget

# By the names that `--workflow` has for them.
_MODES: Mapping[str, Callable[[RunContext, TuningTarget, RunRecords, Baseline], Mode]] = {
    REGION: RegionMode,
    SUBGRAPH: SubgraphMode,
}


def run_tune(
    request: TuneRequest,
    source: Source,
    provider: SampleProvider,
    folder: RunFolder,
    reporter: ProgressReporter,
) -> TuneResult:
    """Everything, in order.

    Args:
        request: What was asked for.
        source: The model.
        provider: What it is run on.
        folder: Where everything goes.
        reporter: Who hears of it.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    pace = TimeBudget(lambda: reporter.left_s, request.preset, request.config.budget_s)
    pace.evaluated = provider.evaluation_sample_count
    with open_engines(request, folder, reporter) as engines:
        ctx = RunContext(folder, engines, reporter, pace)
        target = setup(ctx, request, source, provider)
        with open_records(ctx, target) as records:
            baseline = measure_baseline(ctx, target, records)
            return commit(ctx, _tuned(ctx, target, records, baseline))


def _tuned(
    ctx: RunContext, target: TuningTarget, records: RunRecords, baseline: Baseline
) -> RunResult:
    """What comes of the model, once its own latency is known."""
    journal = records.journal
    if baseline.reason:
        final = Finalized(baseline.reason, earlier=records.earlier)
        outcome = SearchOutcome(stopped=baseline.stopped)
        return RunResult(target, records, baseline, final, outcome)
    found = find_quantizable(ctx, target, baseline)
    if found.reason:
        final = Finalized(found.reason, earlier=records.earlier)
        return RunResult(target, records, baseline, final, grouping=found.grouping)
    mode = _MODES[target.request.config.workflow](ctx, target, records, baseline)
    mode.profile()
    calibration = calibrate(ctx, target, journal, baseline, found)
    problem = mode.prepare(found.planner, calibration)
    evaluator = CandidateEvaluator(
        ctx.engines.engine, target, journal, calibration.inserter, problem
    )
    with contextlib.closing(MeasuredAccuracy(ctx, target, baseline.base, journal)) as accuracy:
        finalists = Finalists(ctx, target, accuracy, problem.space, calibration.inserters)
        outcome = search(ctx, records, baseline, calibration, evaluator, finalists)
        finalizer = Finalizer(ctx, target, records, baseline, calibration, problem, accuracy)
        with defer_interrupts(is_over=outcome.stopped == INTERRUPTED):
            # Checking and repairing may take long; what was measured is not to wait for it.
            best = evaluator.candidate_of(outcome.state)
            records.take_snapshot(evaluator, calibration.grouping, baseline.latency_ms, best)
            final = finalizer.finalize(outcome, finalists)
    run = RunResult(
        target, records, baseline, final, outcome, calibration.grouping, calibration, problem
    )
    best = _handed_over(evaluator, final)
    records.take_snapshot(evaluator, calibration.grouping, run.baseline_ms, best)
    return run


def _handed_over(evaluator: CandidateEvaluator, final: Finalized) -> Candidate:
    """What is handed over, as the last comparison saw it."""
    if final.keeps_earlier and final.earlier is not None:
        earlier = final.earlier
        return evaluator.shipped(earlier.placement, math.log(earlier.summary.speedup))
    is_shipped = final.shipped is not None and final.timed is not None
    gain = math.log(final.timed.comparison.ratio) if is_shipped and final.timed else 0.0
    return evaluator.shipped(final.placement, gain)
