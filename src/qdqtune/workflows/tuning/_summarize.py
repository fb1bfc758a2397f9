"""Summarize a run, and put its result into place all at once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from qdqtune._version import __version__
from qdqtune.config import SUBGRAPH
from qdqtune.engines import _registry as registry
from qdqtune.graph._external_data import model_bytes
from qdqtune.graph._files import write_text
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._tuning import Summary, TuneResult
from qdqtune.search._space import Grouping
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._baseline import Baseline, Calibration
from qdqtune.workflows.tuning._finalists import Finalized
from qdqtune.workflows.tuning._modes import Preparation
from qdqtune.workflows.tuning._run_files import sha256_of_model, sha256_with_weights
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._search import CandidateEvaluator, SearchOutcome

_logger = logging.getLogger(__name__)

_WRITTEN = (
    names.BASELINE,
    names.FINAL,
    names.PLACEMENT,
    names.RANGES,
    names.JOURNAL,
    names.STATE,
    names.PATTERN_CACHE,
)
_OF_SUBGRAPHS = (names.RAW, names.SUBGRAPH_CACHE)


@dataclass(frozen=True)
class RunResult:
    """What the stages of a run returned; those that it did not come to have their defaults.

    Attributes:
        run: The run.
        baseline: What had to be beaten.
        final: What is handed over.
        outcome: What the search came to.
        calibration: What can be quantized, and ranges.
        evaluator: What was searched in, and measured.
    """

    run: TuningRun
    baseline: Baseline
    final: Finalized
    outcome: SearchOutcome = SearchOutcome()  # noqa: RUF009 - a frozen value
    calibration: Calibration | None = None
    evaluator: CandidateEvaluator | None = None

    @property
    def benchmarks(self) -> int:
        """Candidates built and timed."""
        return self.evaluator.benchmarks if self.evaluator is not None else 0

    @property
    def conditions(self) -> Mapping[str, Any]:
        """What a result had to satisfy, as far as that was found out."""
        return self.calibration.conditions if self.calibration is not None else {}

    @property
    def baseline_ms(self) -> float:
        """Latency of the model as given, as the last comparison saw it."""
        timed = self.final.timed
        return timed.baseline_ms if timed is not None else self.baseline.latency_ms


def summarize(result: RunResult, model: Path) -> Summary:
    """The run in numbers, but for the files that it wrote.

    Args:
        result: What the stages returned.
        model: The file that is handed over, as it lies now.
    """
    run, final, outcome, journal = result.run, result.final, result.outcome, result.run.journal
    request, form, shipped = run.request, run.form, final.shipped
    method = shipped.method if shipped is not None else None
    seconds = run.reporter.seconds()
    calibration, evaluator = result.calibration, result.evaluator
    prepared = evaluator.problem.preparation if evaluator is not None else Preparation()
    provider = calibration.provider if calibration is not None else run.provider
    grouping = calibration.grouping if calibration is not None else Grouping()
    ranges = evaluator.calibration.inserter.encoder.ranges if evaluator is not None else None
    figures = {"confidence": 1.0, **(final.timed.figures if final.timed is not None else {})}
    if shipped is None or final.timed is None:
        figures |= {"baseline_ms": result.baseline_ms, "final_ms": result.baseline_ms}
        figures |= {"speedup": 1.0, "speedup_interval": (1.0, 1.0)}
    return Summary(
        **figures,
        model=str(request.model),
        engine=run.info,
        dialect=request.dialect.name,
        quant_type=request.config.quant_type,
        calibration=ranges.source.value if ranges is not None else "random",
        calibrated_on=provider.describe(),
        calibration_method=(method or RangeMethod.MAX).value,
        seed=request.config.seed,
        preset=request.config.preset,
        stopped=outcome.stopped,
        kept_float=shipped is None,
        reason=final.reason,
        output_sqnr_db=shipped.sqnr_db if shipped is not None else None,
        float_sqnr_db=final.float_sqnr_db,
        lost_to_accuracy=final.lost_to_accuracy,
        metric=_metrics(run.float_metric, final.metric),
        noise=result.baseline.noise,
        seeds=dict(outcome.seeds),
        benchmarks=result.benchmarks,
        memo_hits=journal.memo_hits,
        failed=evaluator.failed if evaluator is not None else 0,
        regions=grouping.regions,
        patterns=grouping.patterns,
        groups=len(grouping.groups),
        qdq_pairs=len(final.placement.tensors),
        seconds=seconds,
        files=dict(prepared.files),
        runs=journal.session,
        total_benchmarks=journal.earlier_benchmarks + result.benchmarks,
        total_seconds=journal.earlier_s + seconds.total,
        converted_from=run.source.converted_from,
        conditions=dict(result.conditions),
        mode=request.config.workflow,
        subgraph_benchmarks=prepared.benchmarks,
        subgraph_failed=prepared.failed,
        subgraphs=dict(prepared.subgraphs),
        batches=tuple(evaluator.problem.strategy.batches) if evaluator is not None else (),
        precision=form.name,
        precision_sqnr_db=form.sqnr_db,
        precision_reason=form.reason,
        precision_speedup=form.speedup,
        build_with=registry.build_line(
            run.info, model, run.provider.shapes, str(run.folder / names.FINAL)
        ),
        shapes=provider.shapes,
        version=__version__,
        command=request.config.command,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        bytes_before=model_bytes(request.model),
        calibration_samples=ranges.samples if ranges is not None else 0,
        result_run=journal.session,
        blanket=final.blanket,
        rejected=final.rejected,
    )


def _metrics(of_float: float | None, of_final: float | None) -> dict[str, float] | None:
    found = {"float": of_float, "final": of_final}
    return None if of_float is None else {k: v for k, v in found.items() if v is not None}


def commit(result: RunResult) -> TuneResult:
    """Write what the run came to, or keep what an earlier one did.

    Raises:
        OutputError: If it can't be written.
    """
    run, earlier, placement = result.run, result.final.earlier, result.final.placement
    folder = run.folder
    if result.final.keeps_earlier and earlier is not None:
        folder.clear_staging()
        _logger.warning("the result of an earlier run stays: it is at least as good")
        this_run = summarize(result, folder / names.FINAL)
        summary, placement = earlier.summary_after(this_run), earlier.placement
        _write_summary(folder / names.SUMMARY, summary)
    else:
        summary = _write_result(result)
    run.logs.write_final(summary)
    run.journal.end(result.outcome.stopped)
    run.reporter.tell(
        "done",
        summary.reason or f"{summary.speedup:.2f}x",
        benchmarks=result.benchmarks,
        speedup=summary.speedup,
    )
    return TuneResult(folder / names.FINAL, folder.path, placement, summary)


def _write_result(result: RunResult) -> Summary:
    """Stage all that belongs together, and hand it over at once."""
    folder, request, shipped = result.run.folder, result.run.request, result.final.shipped
    if shipped is None:
        folder.copy_model(request.file, folder.staging() / names.FINAL)
        folder.remove_region_models()
    staged = folder.staged
    final_sha256 = sha256_of_model(staged / names.FINAL)
    placement = result.final.placement.to_json(result.run.header["model"])
    write_text(staged / names.PLACEMENT, placement, force=True)
    if result.calibration is not None and shipped is not None and shipped.method is not None:
        ranges = result.calibration.inserters[shipped.method].encoder.ranges
        write_text(staged / names.RANGES, ranges.to_json(), force=True)
    listed = (*_WRITTEN, *(_OF_SUBGRAPHS if request.config.workflow == SUBGRAPH else ()))
    files = {
        name.partition(".")[0]: name
        for name in listed
        if (staged / name).exists() or (name not in names.RESULT and (folder / name).exists())
    }
    summary = summarize(result, staged / names.FINAL)
    summary = replace(
        summary,
        files={**files, **summary.files},
        final_sha256=final_sha256,
        baseline_sha256=sha256_with_weights(folder / names.BASELINE),
        bytes_after=model_bytes(staged / names.FINAL if shipped is not None else request.file),
    )
    if shipped is not None and shipped.sqnr_db is not None:
        inputs = result.run.provider.evaluation_inputs(request.config.input_request.ranges)
        summary = replace(summary, error_inputs=inputs)
    _write_summary(staged / names.SUMMARY, summary)
    folder.hand_over(keep_old=_is_other_result_lost(result, final_sha256))
    return summary


def _is_other_result_lost(result: RunResult, final_sha256: str) -> bool:
    """Whether a proven result would be replaced by one that was not compared with it."""
    earlier = result.final.earlier
    if earlier is None or earlier.summary.final_sha256 == final_sha256:
        return False
    if earlier.summary.conditions == result.conditions and result.final.shipped is not None:
        return False
    _logger.warning(
        "another result was in the folder, found under other conditions: it is kept in %s",
        result.run.folder / names.ASIDE,
    )
    return True


def _write_summary(path: Path, summary: Summary) -> None:
    write_text(path, json.dumps(summary.to_dict(), indent=1, allow_nan=False) + "\n", force=True)
