"""`tune`: a run from the model to the returned file, faster or unchanged."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from qdqtune._version import __version__
from qdqtune.calibration._output_error import has_scores
from qdqtune.calibration._user_code import UserFunction, find_function
from qdqtune.config import SUBGRAPH, TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._reference_engine import require_reference
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.engines.layers._files import map_layers, read_layer_info
from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._external_data import model_bytes
from qdqtune.graph._files import write_text
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.options import configured
from qdqtune.records._errors import QdqtuneError, UsageError
from qdqtune.records._front import Front
from qdqtune.records._inputs import request_of
from qdqtune.records._ranges import CalibrationSource, RangeMethod
from qdqtune.records._report import ReportDetails
from qdqtune.records._tuning import (
    BY_COUNT,
    FINISHED,
    INTERRUPTED,
    Summary,
    TimeEstimate,
    TunePlan,
    TuneResult,
)
from qdqtune.search._space import Grouping, Space
from qdqtune.search.strategies._registry import check_strategy
from qdqtune.workflows._arguments import on_file
from qdqtune.workflows._convert import convertible
from qdqtune.workflows._interrupts import defer_interrupts
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._report import report
from qdqtune.workflows._sample_provider import (
    SampleProvider,
    data_flags,
    options_with_ranges,
    sample_provider,
    timed_request,
)
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._accuracy import ChoiceAccuracy, Evaluation
from qdqtune.workflows.tuning._baseline import (
    Baseline,
    Calibration,
    calibrate,
    measure_baseline,
)
from qdqtune.workflows.tuning._cache_folder import CacheContent, add_to_folder
from qdqtune.workflows.tuning._finalists import Finalists, Finalized
from qdqtune.workflows.tuning._finalize import Finalizer
from qdqtune.workflows.tuning._folder import SUBGRAPHS, RunFolder
from qdqtune.workflows.tuning._layer_groups import check_mentions
from qdqtune.workflows.tuning._modes import (
    LESSER_BLANKETS,
    Preparation,
    most_assemblies,
    region_problem,
    subgraph_problem,
    takes_long,
    tells_in_place,
)
from qdqtune.workflows.tuning._preflight import AS_GIVEN, find_choices, seeds_of, time_once
from qdqtune.workflows.tuning._report_details import (
    DetailsGatherer,
    details_of,
    write_details,
)
from qdqtune.workflows.tuning._run_files import sha256_of_model, sha256_with_weights
from qdqtune.workflows.tuning._run_records import Candidate, TuningRun, open_records
from qdqtune.workflows.tuning._search import CandidateEvaluator, SearchOutcome, search
from qdqtune.workflows.tuning._setup import RunContext, TuneRequest, open_engines, setup
from qdqtune.workflows.tuning._time_budget import PRESETS, TimeBudget
from qdqtune.workflows.tuning._workers import figures_of

_EVALUATE_EXAMPLE = "(path): return accuracy"


@configured(TuneConfig)
@on_file
def tune(model: Path, config: TuneConfig) -> TuneResult:
    """Find the fastest accurate placement of Q/DQ for a model on an engine, and write it.

    The same call on the same folder resumes an earlier one, however that was stopped. Ctrl-C ends
    the search; the best model so far is finished and written.

    Args:
        model: A path, a proto or an `onnx_ir.Model`. If it has Q/DQ, these are removed first; the
            search starts from its own placement, and the file is the baseline to beat.
        config: The settings; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    reporter = ProgressReporter(config.callbacks, config.budget_s)
    request = _request(model, config)
    require_reference()
    reporter.tell("model", f"reading and folding {request.model.name}")
    source = _source(request)
    _check_comparable(request, source)
    provider, options = _samples(request, source)
    request = replace(request, options=options)
    budget = TimeBudget(lambda: reporter.left_s, request.preset, config.budget_s)
    budget.evaluated = provider.evaluation_sample_count
    others = [Path(each) for each in (config.qdq_baseline, config.graph_json) if each is not None]
    with (
        RunFolder(
            config.output_dir,
            request.model,
            others,
            force=config.force,
            restart=config.restart,
            resume=config.resume != "never",
            folders=(SUBGRAPHS,) if config.workflow == SUBGRAPH else (),
        ) as folder,
        open_engines(request, folder, reporter) as (pool, runner),
    ):
        ctx = RunContext(folder, pool, runner, reporter, budget)
        target = setup(ctx, request, source, provider)
        with open_records(target) as run:
            return commit(_tuned(run, measure_baseline(run)))


def _gathered(
    gatherer: DetailsGatherer, final: Finalized, accuracy: ChoiceAccuracy
) -> ReportDetails | None:
    """Return what the report shows; a failure there must not cost the result."""
    if not gatherer.run.request.config.report:
        return None
    try:
        return gatherer.gather(final, accuracy)
    except Exception as error:  # whatever it is, hours of measurements are at stake
        _warn("the report lacks its details", error)
        return None


def _warn(what: str, error: Exception) -> None:
    is_known = isinstance(error, QdqtuneError | WorkerFailure)
    _logger.warning("%s: %s", what, error if is_known else f"{type(error).__name__}: {error}")
    _logger.info("where that was", exc_info=error)


def _tuned(run: TuningRun, baseline: Baseline) -> RunResult:
    """Run all stages between the baseline and the commit."""
    if baseline.reason:
        final = Finalized(baseline.reason, earlier=run.earlier)
        outcome = SearchOutcome(stopped=baseline.stopped)
        return RunResult(run, baseline, final, outcome)
    calibration = calibrate(run, baseline)
    if calibration.reason:
        final = Finalized(calibration.reason, earlier=run.earlier)
        return RunResult(run, baseline, final, calibration=calibration)
    if run.request.config.workflow == SUBGRAPH:
        problem = subgraph_problem(run, baseline, calibration)
    else:
        problem = region_problem(run, baseline, calibration)
    evaluator = CandidateEvaluator(run, baseline.file, calibration, problem)
    with contextlib.closing(Evaluation(run, baseline.base)) as evaluation:
        accuracy = {
            way: ChoiceAccuracy(evaluation, problem.space, inserter)
            for way, inserter in calibration.inserters.items()
        }
        finalists = Finalists(run, problem.space, accuracy)
        outcome = search(baseline, evaluator, finalists)
        with defer_interrupts(is_over=outcome.stopped == INTERRUPTED):
            # Checks and repairs may take long; measurements should be saved before them.
            evaluator.take_snapshot(evaluator.candidate_of(outcome.state), baseline.latency_ms)
            final = Finalizer(run, finalists, evaluator, baseline).finalize(outcome)
            gatherer = DetailsGatherer(run, baseline, calibration, evaluator, outcome)
            method = final.shipped.method if final.shipped is not None else None
            measured = accuracy[method] if method is not None else next(iter(accuracy.values()))
            details = _gathered(gatherer, final, measured)
    result = RunResult(run, baseline, final, outcome, calibration, evaluator, details)
    handed_over, settled = _handed_over(evaluator, final), _is_settled(run, outcome)
    found = evaluator.pattern_outcomes(handed_over.placement, is_settled=settled)
    evaluator.take_snapshot(handed_over, result.baseline_ms, found)
    if run.request.config.cache_dir is not None:

        def keep(content: CacheContent) -> None:
            for each in found:
                content.patterns.add_outcome(each)

        add_to_folder(Path(run.request.config.cache_dir), keep)
    return result


def _is_settled(run: TuningRun, outcome: SearchOutcome) -> bool:
    """Whether a search was not cut short by the user, whose limit may be far too low."""
    config = run.request.config
    is_limited = config.max_benchmarks is not None or config.schemes_per_region is not None
    return outcome.stopped == FINISHED or (outcome.stopped == BY_COUNT and not is_limited)


def _handed_over(evaluator: CandidateEvaluator, final: Finalized) -> Candidate:
    """Return the candidate that becomes the result, with its gain in the last comparison."""
    if final.keeps_earlier and final.earlier is not None:
        earlier = final.earlier
        return evaluator.shipped(earlier.placement, math.log(earlier.summary.speedup))
    timed = final.timed if final.shipped is not None else None
    gain = math.log(timed.comparison.ratio) if timed is not None else 0.0
    return evaluator.shipped(final.placement, gain)


@configured(TuneConfig)
@on_file
def plan_tune(model: Path, config: TuneConfig) -> TunePlan:
    """Plan a `tune` without writing anything; the model is timed once, to estimate the time.

    Args:
        model: See `tune`.
        config: See `tune`; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    reporter = ProgressReporter(config.callbacks)
    request = _request(model, config)
    dialect, quant_type = request.dialect, config.quant_type
    reporter.tell("model", f"reading and folding {request.model.name}")
    source = _source(request)
    provider, options = _samples(request, source)
    with TemporaryFolder() as folder:
        base = PreparedModel(source.model, folder)
        planner, grouping = find_choices(base, dialect, config, provider)
        space = Space(planner, grouping.groups, estimated_shares(planner.index))
        reading = source.reading
        given = {AS_GIVEN: reading.placement} if reading is not None else {}
        seeds = seeds_of(space, given, grouping)
        most = config.max_benchmarks
        benchmarks = request.preset.limits(len(grouping.groups), grouping.patterns, most).benchmarks
        reporter.tell("engine", f"timing the model once with {registry.title(request.engine)}")
        left_s = math.inf if config.budget_s is None else config.budget_s
        budget = TimeBudget(lambda: left_s, request.preset, config.budget_s)
        with Worker(request.engine, options) as worker:
            timed = time_once(worker, model, provider, budget)
        is_slow = takes_long(timed.build_s)
        if config.workflow == SUBGRAPH:
            left_out = () if is_slow else LESSER_BLANKETS
            seeds = {label: seeds[label] for label in seeds if label not in left_out}
            benchmarks = most_assemblies(request, is_slow=is_slow)
        estimate = None
        if timed.error is None:
            least_s, most_s = map(budget.run_s, (min(len(seeds), benchmarks), benchmarks))
            estimate = TimeEstimate(least_s, most_s, timed.build_s, timed.latency_ms)
        return TunePlan(
            model=str(model),
            engine=request.engine,
            dialect=dialect.name,
            quant_type=quant_type,
            nodes=len(base.nodes),
            regions=grouping.regions,
            patterns=grouping.patterns,
            groups=len(grouping.groups),
            quantizable=len(planner.units),
            left_float=dict(Counter(planner.left_float.values()).most_common()),
            seeds={label: len(space.placement(state).tensors) for label, state in seeds.items()},
            benchmarks=benchmarks,
            mode=config.workflow,
            is_told_in_place=config.workflow == SUBGRAPH and is_slow and tells_in_place(request),
            converted_from=source.converted_from,
            estimate=estimate,
            no_estimate=timed.error or "",
        )


def _request(model: Path, config: TuneConfig) -> TuneRequest:
    """Resolve everything that a config refers to."""
    is_elsewhere = config.cluster is not None and config.engine != registry.AUTO
    engine = config.engine
    if not is_elsewhere:  # it need not be installed here
        engine = registry.resolve(engine, config.engine_options)
    takes_ranges = registry.entry(engine).takes_shape_ranges or config.workflow == SUBGRAPH
    for name in ("min_shapes", "max_shapes"):
        if getattr(config, name) is not None and not takes_ranges:
            raise UsageError(
                f"{name} requires --workflow {SUBGRAPH}, or an engine that builds for a range of "
                "shapes.",
                f"Add --workflow {SUBGRAPH} (workflow={SUBGRAPH!r}), or leave --{name} out.",
            )
    if config.graph_json is not None:
        read_layer_info(Path(config.graph_json))  # fail before anything is done
    check_strategy(config.strategy, config.workflow)
    preset = PRESETS[config.preset].within(config.budget_s)
    runs = config.timing_runs
    return TuneRequest(
        model=model,
        config=config,
        engine=engine,
        options=SessionOptions(config.threads, dict(config.engine_options or {})),
        dialect=native_dialect(engine, options=config.engine_options),
        preset=preset if runs is None else preset.with_runs(runs),
        evaluate=_evaluator(config.evaluate),
    )


def _source(request: TuneRequest) -> Source:
    config, dialect = request.config, request.dialect
    return open_source(
        request.model,
        dialect.format_of(config.quant_type).least_opset,
        optimize=config.optimize,
        float_types=convertible(config.precision, dialect.float_types),
    )


def _samples(request: TuneRequest, source: Source) -> tuple[SampleProvider, SessionOptions]:
    """Return the provider of inputs, and the engine's options with the ranges of shapes."""
    config, options = request.config, request.options
    least, most = request_of(config.min_shapes), request_of(config.max_shapes)
    timed = timed_request(source.model, config.input_request, least, most)
    provider = sample_provider(
        source, replace(timed, seed=config.seed), config.calibration_data,
        config.calibration_samples, config,
    )  # fmt: skip
    with_ranges = options_with_ranges(
        options.engine_options, request.engine, source.model, provider.shapes, least, most
    )
    if config.graph_json is not None:
        index, file = GraphIndex(source.model), Path(config.graph_json)
        check_mentions(index, map_layers(index, read_layer_info(file)), file)
    return provider, replace(options, engine_options=with_ranges)


def _check_comparable(request: TuneRequest, source: Source) -> None:
    """Refuse at once a limit that could not be checked at the end."""
    least_db = request.config.min_sqnr_db
    if least_db is None:
        return
    types = [value.dtype for value in source.model.graph.outputs]
    has_floats = any(dtype is None or dtype.is_floating_point() for dtype in types)
    if not has_floats and not has_scores(request.model):
        raise UsageError(
            f"No output of {request.model} holds floats: --min_sqnr {least_db:g} can't be checked.",
            "Pass --min_sqnr none, and --evaluate to bound what your own metric may lose.",
        )


def _evaluator(evaluate: str | Callable[[str], float] | None) -> UserFunction | None:
    if evaluate is None:
        return None
    if isinstance(evaluate, str):
        return find_function(evaluate, _EVALUATE_EXAMPLE)
    return UserFunction(getattr(evaluate, "__name__", "the evaluate function"), evaluate)


_logger = logging.getLogger(__name__)

_WRITTEN = (
    names.BASELINE,
    names.FINAL,
    names.PLACEMENT,
    names.RANGES,
    names.PARETO,
    names.JOURNAL,
    names.STATE,
    names.PATTERN_CACHE,
)
_OF_SUBGRAPHS = (names.RAW, names.SUBGRAPH_CACHE)


@dataclass(frozen=True)
class RunResult:
    """The values that the stages of a run returned; skipped stages have their defaults.

    Attributes:
        run: The run.
        baseline: The model to beat.
        final: The result.
        outcome: The outcome of the search.
        calibration: What can be quantized, and ranges.
        evaluator: Has the search problem, and the measurements.
        details: What the report shows; None if nothing was gathered.
    """

    run: TuningRun
    baseline: Baseline
    final: Finalized
    outcome: SearchOutcome = SearchOutcome()  # noqa: RUF009 - a frozen value
    calibration: Calibration | None = None
    evaluator: CandidateEvaluator | None = None
    details: ReportDetails | None = None

    @property
    def benchmarks(self) -> int:
        """Candidates built and timed."""
        return self.evaluator.benchmarks if self.evaluator is not None else 0

    @property
    def conditions(self) -> Mapping[str, Any]:
        """The conditions on a result, as far as they were determined."""
        return self.calibration.conditions if self.calibration is not None else {}

    @property
    def baseline_ms(self) -> float:
        """Latency of the original model in the last comparison."""
        timed = self.final.timed
        return timed.baseline_ms if timed is not None else self.baseline.latency_ms


def summarize(result: RunResult, model: Path) -> Summary:
    """Summarize the run, except for the files that it wrote.

    Args:
        result: The values that the stages returned.
        model: The file of the result in its current place.
    """
    run, final, outcome, journal = result.run, result.final, result.outcome, result.run.journal
    request, form, shipped = run.request, run.form, final.shipped
    method = shipped.method if shipped is not None else None
    seconds = run.reporter.seconds()
    calibration, evaluator = result.calibration, result.evaluator
    prepared = evaluator.problem.preparation if evaluator is not None else Preparation()
    provider = calibration.provider if calibration is not None else run.provider
    grouping = calibration.grouping if calibration is not None else Grouping()
    planner = calibration.planner if calibration is not None else None
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
        calibration=_calibration_source(result).value,
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
        dynamic_ops=len(planner.at_run_time(final.placement)) if planner is not None else 0,
        unfused_ops=len(final.placement.unfused),
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
        front=final.front,
        corrected_biases=final.corrected_biases,
        smoothed_inputs=final.smoothed_inputs,
        workers=figures_of(run.pool),
    )


def _calibration_source(result: RunResult) -> CalibrationSource:
    """Where the scales of the result come from."""
    evaluator, shipped = result.evaluator, result.final.shipped
    if evaluator is None:
        return CalibrationSource.RANDOM
    space = evaluator.problem.space
    if shipped is None or shipped.is_smoothed or space.needs_ranges(shipped.state):
        return evaluator.calibration.inserter.encoder.ranges.source
    return CalibrationSource.NONE


def _metrics(of_float: float | None, of_final: float | None) -> dict[str, float] | None:
    found = {"float": of_float, "final": of_final}
    return None if of_float is None else {k: v for k, v in found.items() if v is not None}


def commit(result: RunResult) -> TuneResult:
    """Write the result of the run, or keep an earlier one.

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
    page = _write_report(result) if run.request.config.report else None
    run.reporter.tell(
        "done",
        summary.reason or f"{summary.speedup:.2f}x",
        benchmarks=result.benchmarks,
        speedup=summary.speedup,
    )
    return TuneResult(folder / names.FINAL, folder.path, placement, summary, page)


def _write_report(result: RunResult) -> Path | None:
    """Write the report's data and the report; without them the result is still complete."""
    folder, run = result.run.folder, result.run
    try:
        details = result.details or details_of(run, result.calibration)
        for name in (names.DETAILS, names.REPORT):  # a link or a pipe may be in their place
            (folder / name).unlink(missing_ok=True)
        write_details(folder / names.DETAILS, details)
        return Path(report([folder.path]).output)
    except Exception as error:  # the result is in its place
        _warn("the report can't be written", error)
        return None


def _write_result(result: RunResult) -> Summary:
    """Stage all files of the result, and put them in place at once."""
    folder, request, shipped = result.run.folder, result.run.request, result.final.shipped
    if shipped is None:
        folder.copy_model(request.file, folder.staging() / names.FINAL)
        folder.remove_region_models()
    staged = folder.staged
    final_sha256 = sha256_of_model(staged / names.FINAL)
    placement = result.final.placement.to_json(result.run.header["model"])
    write_text(staged / names.PLACEMENT, placement, force=True)
    if result.final.front:
        front = json.dumps(Front(result.final.front).to_dict(), indent=1, allow_nan=False)
        write_text(staged / names.PARETO, front + "\n", force=True)
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
        config = request.config
        flags = data_flags(config, request.model)
        inputs = result.run.provider.evaluation_inputs(config.input_request.ranges, flags)
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
