"""The model as given: built, and timed against itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.autotune.search.trial import Effort
from qdqtune.engines import registry
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.tuning import BY_BUDGET, FINISHED, Noise
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.noise import check_noise, noise_when_quiet, why_nothing_is_decided
from qdqtune.workflows.tuning.preflight import build_limit_s, check_runs
from qdqtune.workflows.tuning.run_records import RunRecords
from qdqtune.workflows.tuning.setup import TuningTarget


@dataclass(frozen=True)
class Baseline:
    """What has to be beaten.

    Attributes:
        base: The float model, to write candidates from.
        file: The float model as a candidate.
        latency_ms: Latency of the model as given.
        build_s: Seconds that the engine took to build it.
        noise: What can be seen on this machine.
        stopped: Why the run ends here, as the summary has it.
        reason: The same in words; empty if it goes on.
    """

    base: PreparedModel
    file: Path
    latency_ms: float
    build_s: float
    noise: Noise = Noise(1.0, 0.0)  # noqa: RUF009 - a frozen value
    stopped: str = FINISHED
    reason: str = ""


def measure_baseline(ctx: RunContext, target: TuningTarget, records: RunRecords) -> Baseline:
    """Put the model into the folder, build it, and time it against itself.

    Returns:
        Its figures, and a reason to end the run if there is no time for anything else, or if the
        machine is too busy.

    Raises:
        EngineError: If the engine does not run it.
    """
    request, source, engine = target.request, target.source, ctx.engines.engine
    given, began_s = ctx.folder / names.BASELINE, ctx.reporter.elapsed_s
    ctx.folder.copy_model(target.form.model or request.model, given)
    base = PreparedModel(source.model, ctx.folder / names.CANDIDATES, is_kept=True)
    plain = base.write(base.whole(), names.FLOAT_CANDIDATE)
    ctx.pace.write_s = ctx.reporter.elapsed_s - began_s
    ctx.reporter.tell("baseline", "building the model as given, and timing it against itself")
    build_s, first_ms = check_runs(
        engine, given, target.feeds, is_quantized=source.reading is not None,
        converted_from=source.converted_from, most_s=ctx.pace.left_s(),
    )  # fmt: skip
    found = Baseline(base, plain, first_ms, build_s)
    _tell_pace(ctx, found)
    if why := _why_too_short(ctx, target, records, ctx.pace.trial_s(1, Effort.SCREEN)):
        return replace(found, stopped=BY_BUDGET, reason=why)
    # Another float type has another latency: what counts is that of the model as given.
    timed = given if source.converted_from else plain
    noise, latency_ms, again_s = noise_when_quiet(
        lambda: check_noise(engine, timed, target.feeds, request.preset),
        request.config.budget_s,
        ctx.reporter.tell,
    )
    build_s = max(build_s, again_s)  # one of them may have been kept from before
    found = replace(found, noise=noise, latency_ms=latency_ms, build_s=build_s)
    engine.timeout_s = build_limit_s(engine, build_s)
    _tell_pace(ctx, found)
    records.logs.write_baseline(latency_ms)
    if records.earlier is None and (busy := why_nothing_is_decided(noise)):
        return replace(found, reason=busy)
    if why := _why_too_short(ctx, target, records, 0.0):
        return replace(found, stopped=BY_BUDGET, reason=why)
    return found


def _tell_pace(ctx: RunContext, found: Baseline) -> None:
    is_real = registry.entry(ctx.engines.engine.engine).measures
    ctx.pace.saw_baseline(found.build_s, found.latency_ms if is_real else 0.0)


def _why_too_short(
    ctx: RunContext, target: TuningTarget, records: RunRecords, also_s: float
) -> str:
    """Why nothing can come of the run within its budget; what is known costs no time.

    Args:
        ctx: The run.
        target: What is tuned.
        records: What is known.
        also_s: Seconds that are needed before the first candidate.
    """
    is_known = records.journal.earlier_benchmarks or records.earlier is not None
    is_enough = ctx.pace.left_s() >= also_s + ctx.pace.least_s
    if target.request.config.budget_s is None or is_known or is_enough:
        return ""
    return ctx.pace.needed(ctx.reporter.elapsed_s, also_s)
