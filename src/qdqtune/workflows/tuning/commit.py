"""The end of a run: what it came to goes into place, all of it at once."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from qdqtune.config import SUBGRAPH
from qdqtune.engines import registry
from qdqtune.graph.external_data import model_bytes
from qdqtune.graph.files import write_text
from qdqtune.records.tuning import Summary, TuneResult
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.handover import sha256_of_model, sha256_with_weights
from qdqtune.workflows.tuning.summarize import RunResult, WrittenFiles, summarize

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


def commit(ctx: RunContext, run: RunResult) -> TuneResult:
    """Write what the run came to, or keep what an earlier one did.

    Raises:
        OutputError: If it can't be written.
    """
    folder, earlier, placement = ctx.folder, run.final.earlier, run.final.placement
    if run.final.keeps_earlier and earlier is not None:
        folder.clear_staging()
        _logger.warning("the result of an earlier run stays: it is at least as good")
        build_with = _build_line(ctx, run, folder / names.FINAL)
        this_run = summarize(run, WrittenFiles({}, build_with), ctx.reporter.seconds())
        summary, placement = earlier.summary_after(this_run), earlier.placement
        _write_summary(folder / names.SUMMARY, summary)
    else:
        summary = _write_result(ctx, run)
    run.records.logs.write_final(summary)
    run.records.journal.end(run.outcome.stopped)
    ctx.reporter.tell(
        "done",
        summary.reason or f"{summary.speedup:.2f}x",
        benchmarks=run.outcome.benchmarks,
        speedup=summary.speedup,
    )
    return TuneResult(folder / names.FINAL, folder.path, placement, summary)


def _write_result(ctx: RunContext, run: RunResult) -> Summary:
    """Stage all that belongs together, and hand it over at once."""
    folder, request, shipped = ctx.folder, run.target.request, run.final.shipped
    if shipped is None:
        folder.copy_model(request.file, folder.staging() / names.FINAL)
        folder.remove_region_models()
    staged = folder.staged
    final_sha256 = sha256_of_model(staged / names.FINAL)
    placement = run.final.placement.to_json(run.target.fingerprint)
    write_text(staged / names.PLACEMENT, placement, force=True)
    if run.final.ranges is not None:
        write_text(staged / names.RANGES, run.final.ranges.to_json(), force=True)
    is_measured = shipped is not None and shipped.sqnr_db is not None
    provider = run.target.provider
    written = WrittenFiles(
        {
            name.partition(".")[0]: name
            for name in (*_WRITTEN, *(_OF_SUBGRAPHS if request.config.workflow == SUBGRAPH else ()))
            if (staged / name).exists() or (name not in names.RESULT and (folder / name).exists())
        },
        _build_line(ctx, run, staged / names.FINAL),
        final_sha256,
        sha256_with_weights(folder / names.BASELINE),
        model_bytes(staged / names.FINAL if shipped is not None else request.file),
        provider.evaluation_inputs(request.config.input_request.ranges) if is_measured else {},
    )
    summary = summarize(run, written, ctx.reporter.seconds())
    _write_summary(staged / names.SUMMARY, summary)
    folder.hand_over(keep_old=_is_other_result_lost(ctx, run, final_sha256))
    return summary


def _build_line(ctx: RunContext, run: RunResult, model: Path) -> str:
    """The command that builds what is handed over."""
    final, target = str(ctx.folder / names.FINAL), run.target
    return registry.build_line(target.info, model, target.provider.shapes, final)


def _is_other_result_lost(ctx: RunContext, run: RunResult, final_sha256: str) -> bool:
    """Whether a proven result would be replaced by one that was not compared with it."""
    earlier = run.final.earlier
    if earlier is None or earlier.summary.final_sha256 == final_sha256:
        return False
    if earlier.summary.conditions == run.conditions and run.final.shipped is not None:
        return False
    _logger.warning(
        "another result was in the folder, found under other conditions: it is kept in %s",
        ctx.folder / names.ASIDE,
    )
    return True


def _write_summary(path: Path, summary: Summary) -> None:
    write_text(path, json.dumps(summary.to_dict(), indent=1, allow_nan=False) + "\n", force=True)
