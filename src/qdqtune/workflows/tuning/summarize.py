"""The summary of a run, made at its end from what the stages returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from qdqtune._version import __version__
from qdqtune.autotune.search.grouping import Grouping
from qdqtune.graph.external_data import model_bytes
from qdqtune.records.tuning import Seconds, Summary
from qdqtune.workflows.tuning.baseline import Baseline
from qdqtune.workflows.tuning.calibrate import Calibration
from qdqtune.workflows.tuning.finalize import Finalized
from qdqtune.workflows.tuning.run_records import RunRecords
from qdqtune.workflows.tuning.search_loop import SearchOutcome
from qdqtune.workflows.tuning.search_problem import Preparation, SearchProblem
from qdqtune.workflows.tuning.setup import TuningTarget


@dataclass(frozen=True)
class RunResult:
    """What the stages of a run returned; those that it did not come to have their defaults.

    Attributes:
        target: What is tuned.
        records: What was written down.
        baseline: What had to be beaten.
        final: What is handed over.
        outcome: What the search came to.
        grouping: What can be quantized.
        calibration: Ranges.
        problem: What was searched in.
    """

    target: TuningTarget
    records: RunRecords
    baseline: Baseline
    final: Finalized
    outcome: SearchOutcome = SearchOutcome()  # noqa: RUF009 - a frozen value
    grouping: Grouping = field(default_factory=Grouping)
    calibration: Calibration | None = None
    problem: SearchProblem | None = None

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What a result had to satisfy, as far as that was found out."""
        return self.calibration.conditions if self.calibration is not None else {}

    @property
    def baseline_ms(self) -> float:
        """Latency of the model as given, as the last comparison saw it."""
        timed = self.final.timed
        return timed.baseline_ms if timed is not None else self.baseline.latency_ms


@dataclass(frozen=True)
class WrittenFiles:
    """The files that are handed over.

    Attributes:
        files: Their names, by what they are.
        build_with: The command that builds the model.
        final_sha256: Of the model and its weights.
        baseline_sha256: The same of the model as given.
        bytes_after: Size of the model.
        error_inputs: What its error was measured on; empty if it was not.
    """

    files: Mapping[str, str]
    build_with: str
    final_sha256: str = ""
    baseline_sha256: str = ""
    bytes_after: int = 0
    error_inputs: Mapping[str, Any] = field(default_factory=dict)


def summarize(run: RunResult, written: WrittenFiles, seconds: Seconds) -> Summary:
    """The run in numbers.

    Args:
        run: What the stages returned.
        written: What is handed over.
        seconds: Where the time went.
    """
    target, final, outcome, journal = run.target, run.final, run.outcome, run.records.journal
    request, form, shipped = target.request, target.form, run.final.shipped
    compared = final.timed.comparison if final.timed is not None else None
    found = compared if shipped is not None else None
    calibration, problem = run.calibration, run.problem
    prepared = problem.preparation if problem is not None else Preparation()
    provider = calibration.provider if calibration is not None else target.provider
    ranges = calibration.ranges if calibration is not None else None
    metric = target.float_metric
    is_timed = shipped is not None and final.timed is not None
    return Summary(
        model=str(request.model),
        engine=target.info,
        dialect=request.dialect.name,
        quant_type=request.config.quant_type,
        calibration=ranges.source.value if ranges is not None else "random",
        calibrated_on=provider.describe(),
        calibration_method=final.method.value,
        seed=request.config.seed,
        preset=request.config.preset,
        stopped=outcome.stopped,
        baseline_ms=run.baseline_ms,
        final_ms=final.timed.final_ms if is_timed and final.timed else run.baseline_ms,
        speedup=found.ratio if found is not None else 1.0,
        speedup_interval=(found.low, found.high) if found is not None else (1.0, 1.0),
        confidence=compared.confidence if compared is not None else 1.0,
        contention=compared.contention if compared is not None else 0.0,
        openings=compared.openings if compared is not None else 0,
        kept_float=shipped is None,
        reason=final.reason,
        output_sqnr_db=shipped.sqnr_db if shipped is not None else None,
        float_sqnr_db=final.float_sqnr_db,
        lost_to_accuracy=final.lost_to_accuracy,
        metric=None if metric is None else _metrics(metric, final.metric),
        noise=run.baseline.noise,
        seeds=dict(outcome.seeds),
        benchmarks=outcome.benchmarks,
        memo_hits=outcome.memo_hits,
        failed=outcome.failed,
        regions=run.grouping.regions,
        patterns=run.grouping.patterns,
        groups=len(run.grouping.groups),
        qdq_pairs=len(final.placement.tensors),
        seconds=seconds,
        files={**written.files, **prepared.files},
        runs=journal.session,
        total_benchmarks=journal.earlier_benchmarks + outcome.benchmarks,
        total_seconds=journal.earlier_s + seconds.total,
        final_sha256=written.final_sha256,
        baseline_sha256=written.baseline_sha256,
        error_inputs=dict(written.error_inputs),
        converted_from=target.source.converted_from,
        conditions=dict(run.conditions),
        mode=request.config.workflow,
        subgraph_benchmarks=prepared.benchmarks,
        subgraph_failed=prepared.failed,
        subgraphs=dict(prepared.subgraphs),
        batches=problem.batches if problem is not None else (),
        precision=form.name,
        precision_sqnr_db=form.sqnr_db,
        precision_reason=form.reason,
        precision_speedup=form.speedup,
        build_with=written.build_with,
        shapes=provider.shapes,
        version=__version__,
        command=request.config.command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        bytes_before=model_bytes(request.model),
        bytes_after=written.bytes_after,
        calibration_samples=ranges.samples if ranges is not None else 0,
        result_run=journal.session,
        blanket=final.blanket,
        rejected=final.rejected,
    )


def _metrics(of_float: float, of_final: float | None) -> dict[str, float]:
    return {"float": of_float, **({} if of_final is None else {"final": of_final})}
