"""The float model before a search: its latency and noise, what can be quantized, its ranges."""

from __future__ import annotations

import logging
import math
import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._timing import gain_of, scores
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.graph._op_classes import HALF_TYPES
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._errors import EngineError
from qdqtune.records._ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.records._tuning import BY_BUDGET, FINISHED, QUIETER, Noise
from qdqtune.search._space import Grouping
from qdqtune.search.strategies._strategy import Effort
from qdqtune.workflows._sample_provider import SampleProvider, ranges_in_every_way
from qdqtune.workflows._source_model import Source, has_types
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._preflight import build_limit_s, check_runs, find_choices, with_ranges
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._time_budget import Preset
from qdqtune.workflows.tuning._workers import check_together

Tell = Callable[[str, str], None]
"""Called with a stage and a message about it."""
Found = tuple[Noise, float, float]
"""The noise, the model's latency in milliseconds, and the seconds that it took to build."""

# Standard errors that a difference must have to be detectable.
_SEEN = 2.0
# How long to wait for a quiet machine, and how long between two checks.
_PART_OF_BUDGET = 0.1
_WITHOUT_BUDGET_S = 30.0
_PAUSE_S = 1.0


def check_noise(worker: Worker, path: Path, feeds: StoredFeeds, preset: Preset) -> Found:
    """Time the model against itself.

    Args:
        worker: The engine.
        path: The model.
        feeds: Its inputs.
        preset: How thorough comparisons will be.

    Returns:
        The noise on this machine, the model's latency in milliseconds, and the seconds that the
        engine took to build it.

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
    """Check the noise, and again after a while if it hides everything.

    Args:
        check: Checks it once.
        budget_s: The budget of the whole run in seconds, a tenth of which may be spent waiting;
            None for no limit.
        tell: Called with the result, and with a message when the run waits.
    """
    start = time.monotonic()
    limit_s = _WITHOUT_BUDGET_S if budget_s is None else _PART_OF_BUDGET * budget_s
    found = check()
    check_s = time.monotonic() - start
    end = start + limit_s + check_s  # the first check doesn't count as waiting
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


@dataclass(frozen=True)
class Baseline:
    """The model that candidates have to beat.

    Attributes:
        base: The float model, from which candidates are written.
        file: The float model that candidates are compared with. Engines that build for long have
            built the original model already, and fold constants in it by themselves.
        latency_ms: Latency of the original model.
        build_s: Seconds that the engine took to build it.
        noise: The noise on this machine.
        stopped: Why the run ends here, in the summary's terms.
        reason: The same as text; empty if the run continues.
    """

    base: PreparedModel
    file: Path
    latency_ms: float
    build_s: float
    noise: Noise = Noise(1.0, 0.0)  # noqa: RUF009 - a frozen value
    stopped: str = FINISHED
    reason: str = ""


def measure_baseline(run: TuningRun) -> Baseline:
    """Put the model into the folder, build it, and time it against itself.

    Returns:
        Its figures, and a reason to end the run if there is no time for anything else, or if the
        machine is too busy.

    Raises:
        EngineError: If the engine does not run it.
    """
    request, source, engine = run.request, run.source, run.engine
    given, began_s = run.folder / names.BASELINE, run.reporter.elapsed_s
    run.folder.copy_model(run.form.model or request.model, given)
    base = PreparedModel(source.model, run.folder / names.CANDIDATES, is_kept=True)
    plain = base.write(base.whole(), names.FLOAT_CANDIDATE)
    run.budget.write_s = run.reporter.elapsed_s - began_s
    run.reporter.tell("baseline", "building the model as given, and timing it against itself")
    build_s, first_ms = check_runs(
        engine, given, run.feeds, is_quantized=source.reading is not None,
        converted_from=source.converted_from, most_s=run.budget.left_s(),
    )  # fmt: skip
    keeps_builds = registry.entry(request.engine).keeps_builds
    if keeps_builds:  # an earlier run may have paid for it
        build_s = run.journal.keep_build_s(build_s)
    is_enough = keeps_builds and source.reading is None
    found = Baseline(base, given if is_enough else plain, first_ms, build_s)
    _saw_baseline(run, found, run.budget.start_s if keeps_builds else None)
    if why := _why_too_short(run, run.budget.noise_check_s):
        return replace(found, stopped=BY_BUDGET, reason=why)
    # Another float type has another latency; that of the original model counts.
    timed = given if source.converted_from else found.file
    noise, latency_ms, again_s = noise_when_quiet(
        lambda: check_noise(engine, timed, run.feeds, request.preset),
        request.config.budget_s,
        run.reporter.tell,
    )
    build_s = max(build_s, again_s)  # one of them may have come from a cache
    found = replace(found, noise=noise, latency_ms=latency_ms, build_s=build_s)
    limit_s = build_limit_s(engine, build_s)
    for member in run.pool.members:
        member.worker.timeout_s = limit_s
    _saw_baseline(run, found, again_s if keeps_builds else None)
    run.logs.write_baseline(latency_ms)
    if run.earlier is None and noise.hides_everything:
        unseen = f"differences below {100 * noise.detectable:.0f} % can't be seen"
        busy = f"the machine is too busy to decide anything: {unseen}"
        return replace(found, reason=f"{busy}. {QUIETER.removesuffix('.')}")
    if why := _why_too_short(run, 0.0):
        return replace(found, stopped=BY_BUDGET, reason=why)
    check_together(
        run.pool, latency_ms,
        lambda worker: check_noise(worker, timed, run.feeds, request.preset)[:2],
        run.reporter.tell,
    )  # fmt: skip
    return found


def _saw_baseline(run: TuningRun, found: Baseline, again_s: float | None = None) -> None:
    is_real = registry.entry(run.engine.engine).measures
    run.budget.saw_baseline(found.build_s, found.latency_ms if is_real else 0.0, again_s)


def _why_too_short(run: TuningRun, also_s: float) -> str:
    """Return why the budget is too short for any result; empty if not, or if results are known.

    Args:
        run: The run.
        also_s: Seconds needed before the first candidate.
    """
    is_known = run.journal.earlier_benchmarks or run.earlier is not None
    is_enough = run.budget.left_s() >= also_s + run.budget.least_s
    if run.request.config.budget_s is None or is_known or is_enough:
        return ""
    return run.budget.needed(run.reporter.elapsed_s, also_s)


_logger = logging.getLogger(__name__)


@dataclass
class BoundedSamples:
    """Samples, limited in each pass to those that there is time for, and at least one.

    Attributes:
        make: Generates all of them.
        most: The number to take, if an earlier run had no time for more; None for all.
        seconds: Time limit of each pass.
        count: Number of samples in the last pass.
        is_cut_short: Whether these were not all.
    """

    make: Callable[[], Iterable[Feeds]]
    most: int | None
    seconds: float
    count: int = 0
    is_cut_short: bool = False

    def __iter__(self) -> Iterator[Feeds]:
        began, self.count, self.is_cut_short = time.monotonic(), 0, False
        for feeds in self.make():
            is_late = self.count > 0 and time.monotonic() - began >= self.seconds
            if is_late if self.most is None else self.count >= self.most:
                self.is_cut_short = True
                return
            self.count += 1
            yield feeds

    def __length_hint__(self) -> int:
        return operator.length_hint(self.make())


@dataclass(frozen=True)
class Calibration:
    """What can be quantized, with ranges by every method.

    Attributes:
        planner: Knows what each op needs to be quantized.
        grouping: Ops that can be quantized, grouped by what belongs together.
        provider: Provided the inputs.
        reason: Why nothing can be quantized, and there are no ranges; empty otherwise.
        inserters: Writers of candidates, by the source of their ranges; the search uses the first.
        conditions: Conditions that a result must satisfy, as in `Summary`.
    """

    planner: QuantizationPlanner
    grouping: Grouping
    provider: SampleProvider
    reason: str = ""
    inserters: Mapping[RangeMethod, Inserter] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inserter(self) -> Inserter:
        """Writes the candidates of the search."""
        return next(iter(self.inserters.values()))


def calibrate(run: TuningRun, baseline: Baseline) -> Calibration:
    """Find what can be quantized, and ranges by every method; ops without ranges are left out.

    Raises:
        UsageError: If no quantizable op matches a filter.
        QdqtuneError: If the samples can't be read, or the model does not run on them.
    """
    request, base, tell = run.request, baseline.base, run.reporter.tell
    tell("model", "finding what can be quantized")
    config = replace(request.config, regions=run.journal.division_for(request.config.regions))
    planner, grouping = find_choices(
        base, request.dialect, config, run.provider, run.runner, run.pattern_cache
    )
    run.journal.keep_division(grouping.divided_by)
    tell(
        "model",
        f"{len(base.nodes)} ops, {grouping.regions} regions by {grouping.divided_by}, "
        f"{grouping.patterns} patterns, {len(grouping.groups)} choices",
    )
    _tell_cache(run, grouping)
    if not grouping.groups:
        return Calibration(planner, grouping, run.provider, _why_nothing(planner, run.source))
    if request.config.dynamic_only:
        return _without_calibration(run, baseline, planner, grouping)
    given = run.source.encodings
    provider, ways = _ranges(run, baseline, planner)
    run.budget.ranges = len(ways)
    first = next(iter(ways.values()))

    def known(tensor: str) -> bool:
        return tensor in first.by_tensor or tensor in given or base.index.is_constant(tensor)

    inserter = Inserter(base, request.dialect, request.config.quant_type, first, given)
    data = "" if first.source is CalibrationSource.RANDOM else inserter.encoder.digest()
    return Calibration(
        planner,
        with_ranges(grouping, planner, known),
        provider,
        inserters={way: inserter.with_ranges(ranges) for way, ranges in ways.items()},
        conditions={"calibration": data, **run.requirements},
    )


def _without_calibration(
    run: TuningRun, baseline: Baseline, planner: QuantizationPlanner, grouping: Grouping
) -> Calibration:
    """Leave only choices that need no ranges."""
    free = tuple(group for group in grouping.groups if not group.form.needs_ranges)
    if not free:
        why = f"the {run.request.dialect.name} dialect can quantize nothing of it at run time"
        return Calibration(planner, replace(grouping, groups=()), run.provider, why)
    ranges = Ranges({}, CalibrationSource.NONE, 0)
    quant_type = run.request.config.quant_type
    return Calibration(
        planner,
        replace(grouping, groups=free),
        run.provider,
        inserters={
            RangeMethod.MAX: Inserter(baseline.base, run.request.dialect, quant_type, ranges)
        },
        conditions={"calibration": "", **run.requirements},
    )


def _tell_cache(run: TuningRun, grouping: Grouping) -> None:
    """Report how many patterns of the cache occur in the model."""
    if run.pattern_cache is None:
        return
    found, patterns, path = (
        grouping.cached_patterns, run.pattern_cache.num_patterns, run.request.config.pattern_cache,
    )  # fmt: skip
    if found:
        what = f"{found} of the {patterns} patterns in {path} occur in this model"
        run.reporter.tell("pattern cache", what)
    else:
        _logger.warning("none of the %d patterns in %s occur in this model", patterns, path)


def _why_nothing(planner: QuantizationPlanner, source: Source) -> str:
    reasons = Counter(planner.left_float.values())
    common = "; ".join(reason for reason, _ in reasons.most_common(3))
    hint, unsuited = "", HALF_TYPES.difference(planner.dialect.float_types)
    if not source.converted_from and has_types(source.model, unsuited):
        hint = "; without --precision it is tuned in float32"
    return f"nothing of it can be quantized{': ' + common if common else ''}{hint}"


def _ranges(
    run: TuningRun, baseline: Baseline, planner: QuantizationPlanner
) -> tuple[SampleProvider, dict[RangeMethod, Ranges]]:
    """Compute ranges by every method, from fewer samples if there is no time for all."""
    request, provider, reporter = run.request, run.provider, run.reporter
    reporter.tell("calibration", f"on {provider.describe()}")
    layout = request.dialect.format_of(request.config.quant_type)
    bounded = BoundedSamples(provider.samples, run.journal.samples, run.budget.calibration_s)
    ways = ranges_in_every_way(
        run.source, baseline.base, run.runner, planner.candidate_edges,
        replace(provider, samples=lambda: bounded), layout, request.config.range_method,
        reporter.counter("calibration", "samples, then ranges from them"),
    )  # fmt: skip
    if bounded.is_cut_short:
        told = f"the first {bounded.count} samples, all that --budget left time for"
        provider = replace(provider, describe=lambda: told)
        reporter.tell("calibration", f"on {told}")
        if run.journal.samples is None:
            run.journal.keep_samples(bounded.count)
    return provider, ways
