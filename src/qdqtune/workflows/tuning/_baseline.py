"""Build the model as given and time it against itself: what differences can this machine show?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._timing import gain_of, scores
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.records._errors import EngineError
from qdqtune.records._tuning import BY_BUDGET, FINISHED, QUIETER, Noise
from qdqtune.search.strategies._strategy import Effort
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._preflight import build_limit_s, check_runs
from qdqtune.workflows.tuning._run_records import RunRecords
from qdqtune.workflows.tuning._setup import TuningTarget
from qdqtune.workflows.tuning._time_budget import Preset

Tell = Callable[[str, str], None]
"""Told a stage and what happens in it."""
Found = tuple[Noise, float, float]
"""The noise, the model's latency in milliseconds, the seconds that it took to build."""

# How many standard errors a difference must have to be seen.
_SEEN = 2.0
# How long to wait for a machine to become quiet, and how long between two looks at it.
_PART_OF_BUDGET = 0.1
_WITHOUT_BUDGET_S = 30.0
_PAUSE_S = 1.0


def check_noise(worker: Worker, path: Path, feeds: StoredFeeds, preset: Preset) -> Found:
    """Time the model against itself.

    Args:
        worker: The engine.
        path: The model.
        feeds: What it is run on.
        preset: How thorough comparisons will be.

    Returns:
        What can be seen on this machine, the model's latency in milliseconds, and the seconds that
        the engine took to build it.

    Raises:
        EngineError: If the engine doesn't run the model.
    """
    rounds, seconds = preset.rounds[Effort.SCREEN], preset.seconds[Effort.SCREEN]
    (one, other), _ = compare_files(worker, [path, path], feeds, rounds=rounds, budget_s=seconds)
    for measurement in (one, other):
        if not measurement.ok:
            raise EngineError(
                f"The engine does not run the model as it is: {measurement.error}",
                "Nothing can be gained on an engine that refuses the model. Try `qdqtune bench` "
                "on it.",
            )
    gain, error = gain_of(scores(one.blocks_ms, other.blocks_ms))
    noise = Noise(math.exp(gain), math.expm1(_SEEN * error))
    return noise, one.latency_ms, one.build_s


def noise_when_quiet(check: Callable[[], Found], budget_s: float | None, tell: Tell) -> Found:
    """Check the noise, and again after a while if nothing can be seen through it.

    Args:
        check: Checks it once.
        budget_s: Seconds that the whole run may take: a tenth of them may be spent waiting. None
            has no end.
        tell: Told what was found, and that the run waits.
    """
    start = time.monotonic()
    limit_s = _WITHOUT_BUDGET_S if budget_s is None else _PART_OF_BUDGET * budget_s
    found = check()
    check_s = time.monotonic() - start
    end = start + limit_s + check_s  # the first check is no waiting
    while found[0].hides_everything:
        left_s = end - time.monotonic()
        if left_s < _PAUSE_S + check_s:
            break
        seen = f"{100 * found[0].detectable:.0f} %"
        tell("noise", f"only differences from {seen} on can be seen: waiting up to {left_s:.0f} s "
             "for the machine to be quiet")  # fmt: skip
        time.sleep(_PAUSE_S)
        found = check()
    tell("noise", found[0].text)
    return found


def why_nothing_is_decided(noise: Noise) -> str:
    """The reason to hand a model back as it is; empty if something can be seen."""
    if not noise.hides_everything:
        return ""
    return (
        f"the machine is too busy to decide anything: differences below "
        f"{100 * noise.detectable:.0f} % can't be seen. {QUIETER.removesuffix('.')}"
    )


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
    ctx.budget.write_s = ctx.reporter.elapsed_s - began_s
    ctx.reporter.tell("baseline", "building the model as given, and timing it against itself")
    build_s, first_ms = check_runs(
        engine, given, target.feeds, is_quantized=source.reading is not None,
        converted_from=source.converted_from, most_s=ctx.budget.left_s(),
    )  # fmt: skip
    found = Baseline(base, plain, first_ms, build_s)
    _saw_baseline(ctx, found)
    if why := _why_too_short(ctx, target, records, ctx.budget.trial_s(1, Effort.SCREEN)):
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
    _saw_baseline(ctx, found)
    records.logs.write_baseline(latency_ms)
    if records.earlier is None and (busy := why_nothing_is_decided(noise)):
        return replace(found, reason=busy)
    if why := _why_too_short(ctx, target, records, 0.0):
        return replace(found, stopped=BY_BUDGET, reason=why)
    return found


def _saw_baseline(ctx: RunContext, found: Baseline) -> None:
    is_real = registry.entry(ctx.engines.engine.engine).measures
    ctx.budget.saw_baseline(found.build_s, found.latency_ms if is_real else 0.0)


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
    is_enough = ctx.budget.left_s() >= also_s + ctx.budget.least_s
    if target.request.config.budget_s is None or is_known or is_enough:
        return ""
    return ctx.budget.needed(ctx.reporter.elapsed_s, also_s)
