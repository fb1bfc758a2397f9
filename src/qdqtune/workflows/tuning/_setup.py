"""Set up a run: check the request, start the engine, choose the float type of the model.

Until the journal is open, nothing from another run in the folder is replaced.
"""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtune.calibration._user_code import UserFunction
from qdqtune.config import TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import Shapes
from qdqtune.engines._pool import WorkerPool
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.graph._atomic_files import sha256_of
from qdqtune.graph._files import check_writable
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._encoding import ReadEncoding
from qdqtune.records._accuracy import METRIC, checked_metric
from qdqtune.records._errors import AutotunerError, NewerVersionError, UsageError
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._placement import Placement
from qdqtune.records._precision import AUTO
from qdqtune.records._ranges import CalibrationSource
from qdqtune.records._tuning import AS_GIVEN as UNCHANGED
from qdqtune.records._untrusted_files import real_path
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._pattern_outcomes import Conditions
from qdqtune.search.patterns._state_file import read_state
from qdqtune.workflows._bench import engine_info
from qdqtune.workflows._convert import FloatForm, convert_to, told_options, wanted_type
from qdqtune.workflows._imported_placement import import_placement
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._report import read_summary
from qdqtune.workflows._sample_provider import SampleProvider
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning._cache_folder import CacheContent, change_folder
from qdqtune.workflows.tuning._folder import (
    BASELINE,
    ENGINE_LOG,
    FINAL,
    JOURNAL,
    LOGS,
    PLANS,
    RunFolder,
)
from qdqtune.workflows.tuning._journal_format import (
    as_said_before,
    check_state,
    precision_of,
)
from qdqtune.workflows.tuning._preflight import AS_GIVEN, copy_log
from qdqtune.workflows.tuning._time_budget import Preset, TimeBudget
from qdqtune.workflows.tuning._workers import check_alike, open_hosts


@dataclass(frozen=True)
class TuneRequest:
    """A call of `qdqtune.tune`.

    Attributes:
        model: The original model.
        config: The settings.
        engine: Name of the engine that runs it.
        options: The engine's options for opening models.
        dialect: The dialect of Q/DQ.
        preset: How thorough the run is.
        evaluate: The user's metric, if any.
        converted: The model in another float type, which is tuned instead; None if not converted.
    """

    model: Path
    config: TuneConfig
    engine: str
    options: SessionOptions
    dialect: Dialect
    preset: Preset
    evaluate: UserFunction | None = None
    converted: Path | None = None

    @property
    def state_file(self) -> Path | None:
        """The user's state file."""
        return None if self.config.state_file is None else Path(self.config.state_file)

    @property
    def file(self) -> Path:
        """The model that is tuned, and returned if nothing is faster."""
        return self.converted or self.model


@contextlib.contextmanager
def open_engines(
    request: TuneRequest, folder: RunFolder, reporter: ProgressReporter
) -> Iterator[tuple[WorkerPool, Worker]]:
    """Start the engine's workers and the reference engine for the duration of the run.

    Args:
        request: The request.
        folder: The run's folder.
        reporter: Keeps time, including that of the engines.
    """
    logs, scratch = folder / LOGS, folder.scratch
    with (
        open_hosts(request.config, request.engine, reporter.tell) as hosts,
        reference_worker(log_path=logs / "runs.log", scratch=scratch) as runner,
    ):
        workers = [
            Worker(
                request.engine, request.options, log_path=_log_of(logs, number), scratch=scratch,
                plans=folder / PLANS, host=host,
            )
            for number, host in enumerate(hosts)
        ]  # fmt: skip
        with contextlib.closing(WorkerPool(workers)) as pool:
            reporter.workers += [runner, *workers]
            reporter.watch(pool)
            yield pool, runner


def _log_of(logs: Path, number: int) -> Path:
    """Return the log of a worker: the first one's is that of runs with one worker."""
    first = logs / ENGINE_LOG
    return first if number == 0 else first.with_stem(f"{first.stem}-{number + 1}")


@dataclass(frozen=True)
class RunContext:
    """The context of every stage of a run; results are in the values that stages return.

    Attributes:
        folder: The output folder.
        pool: Workers of the engine that the model is tuned for.
        runner: The reference engine.
        reporter: Reports every step.
        budget: Predicts what there is time for.
    """

    folder: RunFolder
    pool: WorkerPool
    runner: Worker
    reporter: ProgressReporter
    budget: TimeBudget

    @property
    def engine(self) -> Worker:
        """The worker for everything that is done only once."""
        return self.pool.first


_logger = logging.getLogger(__name__)

# How like a wildcard without its stars a node's name must be to be shown.
_LIKE = 0.4


@dataclass(frozen=True)
class TuningTarget(RunContext):
    """The target of a run.

    Attributes:
        request: The request.
        source: The model.
        header: Everything that measurements depend on: those made under another header are not
            used.
        requirements: Further conditions on a result, except for its calibration.
        info: The engine that measures.
        provider: Provides the inputs.
        feeds: The inputs that every model is timed on.
        form: Its float type.
        given: What is quantized in existing Q/DQ files of it, by the name of the seed.
        pattern_cache: Schemes that other runs found for patterns.
        float_metric: The user's metric of the original model; None without a metric.
        shared: The content of the user's cache folder, if any.
    """

    request: TuneRequest
    source: Source
    header: Mapping[str, Any]
    requirements: Mapping[str, Any]
    info: EngineInfo
    provider: SampleProvider
    feeds: StoredFeeds
    form: FloatForm
    given: Mapping[str, Placement]
    pattern_cache: PatternCache | None
    float_metric: float | None
    shared: CacheContent | None

    @property
    def conditions(self) -> Conditions:
        """Where patterns are measured."""
        info, request = self.info, self.request
        threads = "" if info.threads is None else f", {info.threads} threads"
        device = f"{info.device} ({info.isa}){threads}"
        return Conditions(
            info.name, info.version, device, request.dialect.name, request.config.quant_type
        )


def setup(
    ctx: RunContext, request: TuneRequest, source: Source, provider: SampleProvider
) -> TuningTarget:
    """Check the request, start the engine, and convert the model if that is worthwhile.

    Args:
        ctx: The run.
        request: The request.
        source: The model.
        provider: Provides its inputs.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    reporter, engine = ctx.reporter, ctx.engine
    shared = _shared_cache(request.config)
    given, kept_scales = given_placements(request, source, reporter.tell)
    check_first(request, source, provider, ctx.folder)
    float_metric = _evaluate_float(ctx, request)
    ctx.folder.begin()
    began_s = reporter.elapsed_s
    request, info = ask_engine(request, engine)
    check_alike(ctx.pool, request.engine, info)
    ctx.budget.start_s = reporter.elapsed_s - began_s
    reporter.tell("engine", f"{registry.title(request.engine)} {info.version} on {info.device}")
    feeds = engine.store(next(iter(provider.evaluation_samples())))
    form = _float_form(ctx, request, source, provider, info, feeds)
    if form.model is not None:
        request = replace(request, converted=ctx.folder / BASELINE)
        layout = request.dialect.format_of(request.config.quant_type)
        source = open_source(form.model, layout.least_opset, optimize=request.config.optimize)
    source = replace(source, kept_scales=kept_scales)
    _tell_form(request, source, form, reporter)
    header = _header(request, info, provider.shapes, fingerprint(source.model), form.name)
    return TuningTarget(
        **vars(ctx),
        request=request,
        source=source,
        info=info,
        header=as_said_before(ctx.folder / JOURNAL, header),
        requirements=_requirements(request, form.name),
        provider=provider,
        feeds=feeds,
        form=form,
        given=given,
        pattern_cache=_given_cache(request.config.pattern_cache),
        float_metric=float_metric,
        shared=shared,
    )


def _header(
    request: TuneRequest, info: EngineInfo, shapes: Shapes, model: str, precision: str
) -> dict[str, Any]:
    """Return everything that measurements depend on, as JSON.

    Args:
        request: The request.
        info: The engine that measures.
        shapes: Shapes of the model's inputs.
        model: Fingerprint of the tuned model.
        precision: The float type that it was converted to, or `AS_GIVEN`.
    """
    header = {
        **_converted(precision),
        "model": model,
        "engine": info.to_dict(),
        "dialect": request.dialect.name,
        "quant_type": request.config.quant_type,
        "shapes": shapes,
    }
    found: dict[str, Any] = json.loads(json.dumps(header))
    return found


def _requirements(request: TuneRequest, precision: str) -> dict[str, Any]:
    """Return the conditions on a result, as in `Summary`, except for its calibration.

    Args:
        request: The request.
        precision: See `_header`.
    """
    return {
        "model_sha256": sha256_of(request.model),
        **request.config.identity(),
        "evaluate": request.evaluate.label if request.evaluate is not None else None,
        **_converted(precision),
    }


def _converted(precision: str) -> dict[str, str]:
    """Return the precision entry; versions that did not convert models had none."""
    return {} if precision == UNCHANGED else {"precision": precision}


def _evaluate_float(ctx: RunContext, request: TuneRequest) -> float | None:
    """Return the metric of the original model; a broken function should fail at once.

    Raises:
        UsageError: If the function does not return a number.
    """
    evaluate = request.evaluate
    if evaluate is None:
        return None
    ctx.reporter.tell("evaluate", f"{evaluate.label} on the model as given")
    began_s = ctx.reporter.elapsed_s
    found = checked_metric(evaluate(str(request.model)), evaluate.label)
    ctx.budget.saw_accuracy(METRIC, ctx.reporter.elapsed_s - began_s)
    return found


def _tell_form(
    request: TuneRequest, source: Source, form: FloatForm, reporter: ProgressReporter
) -> None:
    if source.converted_from:
        reporter.tell(
            "precision",
            f"{request.dialect.name} has no integer kernels for {source.converted_from}: the "
            f"model is tuned in float32; inputs and outputs keep their types",
        )
    if form.model is not None:
        error = f", {form.sqnr_db:.1f} dB from it" if form.sqnr_db is not None else ""
        gain = f", {form.speedup:.2f}x as fast" if form.speedup is not None else ""
        reporter.tell("precision", f"the model is tuned in {form.name}{error}{gain}")


def check_first(
    request: TuneRequest, source: Source, provider: SampleProvider, folder: RunFolder
) -> None:
    """Check a request before anything in the folder changes.

    Raises:
        QdqtuneError: If something is wrong with it.
    """
    nodes = [node.name or "" for node in source.model.graph]
    for wildcards in (request.config.node_filter, request.config.region_filter):
        _check_filter(wildcards, nodes)
    if request.state_file is not None:
        _check_state_file(request.state_file, request, source)
    if provider.source is CalibrationSource.RANDOM and not request.config.dynamic_only:
        _refuse_to_lose_calibration(folder)
    if folder.replaces_a_run:  # another run must be certain to start
        with Worker(request.engine, request.options, scratch=folder.scratch) as probe:
            engine_info(probe, request.engine)


def _refuse_to_lose_calibration(folder: RunFolder) -> None:
    """Refuse to replace a model that was calibrated on data by one with random scales.

    Raises:
        UsageError: If the folder has such a model, and the run would not set it aside.
    """
    if folder.begins_anew or not (folder / FINAL).is_file():
        return
    try:
        earlier = read_summary(folder.path)
    except UsageError:  # it is damaged, which is said where it is left out
        return
    if not earlier.kept_float and earlier.calibration == CalibrationSource.DATA.value:
        raise UsageError(
            f"The model in {folder.path} was calibrated on data, and this command has none.",
            "Repeat its --calibration_data, or choose another --output_dir, or set the earlier run "
            "aside by --restart.",
        )


def _check_filter(wildcards: Sequence[str], nodes: Sequence[str]) -> None:
    """Name the patterns of a filter that no node matches, with the names that are like them.

    Raises:
        UsageError: If no node matches any of them.
    """
    useless = [each for each in wildcards if not fnmatch.filter(nodes, each)]
    if not useless:
        return
    told = []
    for each in useless:
        near = difflib.get_close_matches(each, nodes) or difflib.get_close_matches(
            each.strip("*"), nodes, cutoff=_LIKE
        )
        told.append(f"{each} (there are {', '.join(near)})" if near else each)
    if len(useless) == len(wildcards):
        raise UsageError(
            "No node of the model matches the node filter.", f"Its patterns are: {', '.join(told)}."
        )
    _logger.warning("no node matches these patterns of the node filter: %s", ", ".join(told))


def _check_state_file(path: Path, request: TuneRequest, source: Source) -> None:
    """Make sure that the user's state file may be resumed, and written to.

    Raises:
        UsageError: If it is the state of another model or quant type.
        AutotunerError: If it is not a state file.
        OutputError: If it can't be written there.
    """
    check_writable(path, force=True)
    if path.exists():
        there = read_state(path).header
        here = {"model": fingerprint(source.model), "quant_type": request.config.quant_type}
        if "precision" in there:  # the state of a converted model, which this one may become
            here |= {name: there[name] for name in ("precision", "model") if name in there}
        check_state(path, there, here)


def _given_cache(path: str | os.PathLike[str] | None) -> PatternCache | None:
    """Load the user's pattern cache; an unreadable one is ignored.

    Args:
        path: The file, if any.

    Raises:
        NewerVersionError: If a newer version wrote it.
    """
    if path is None:
        return None
    try:
        return PatternCache.load(path)
    except NewerVersionError:
        raise
    except FileNotFoundError:
        _logger.warning("there is no pattern cache %s: the search begins without it", path)
    except AutotunerError as error:
        _logger.warning("%s The search begins without it.", error.what)
    return None


def _shared_cache(config: TuneConfig) -> CacheContent | None:
    """Open the user's cache folder, so that one that can't be written to is refused at once.

    Raises:
        OutputError: If it can't be written to.
        UsageError: If it can't be read, or is in use.
    """
    if config.cache_dir is None:
        return None
    if real_path(config.cache_dir) == real_path(config.output_dir):
        raise UsageError(
            f"{config.cache_dir} is both --cache_dir and --output_dir.",
            "Give the cache a folder of its own.",
        )
    found: list[CacheContent] = []
    change_folder(Path(config.cache_dir), found.append)
    return found[0]


def given_placements(
    request: TuneRequest, source: Source, tell: Callable[[str, str], None]
) -> tuple[dict[str, Placement], Mapping[str, ReadEncoding]]:
    """Return what is quantized in existing Q/DQ files of the model, and the scales that are kept.

    Args:
        request: The request.
        source: The model.
        tell: Called with how much of such a file is in the model.

    Raises:
        QdqtuneError: If such a file is from another model.
    """
    found: dict[str, Placement] = {}
    scales: Mapping[str, ReadEncoding] = {}
    if source.reading is not None:
        found[AS_GIVEN] = source.reading.placement
    if request.config.qdq_baseline is not None:
        baseline = import_placement(
            source.model, Path(request.config.qdq_baseline), optimize=request.config.optimize
        )
        tell("Q/DQ baseline", baseline.headline)
        if request.config.keep_scales:
            scales = baseline.encodings
            tell("Q/DQ baseline", f"the scales of {len(scales)} of its tensors are kept")
        found["Q/DQ baseline"] = baseline.placement
    return found, scales


def ask_engine(request: TuneRequest, engine: Worker) -> tuple[TuneRequest, EngineInfo]:
    """Query the engine; one that chooses float types itself gets the requested type as an option.

    Returns:
        The request with the options in effect, and the engine.

    Raises:
        QdqtuneError: If it does not start, or its options contradict the request.
    """
    info = engine_info(engine, request.engine)
    given: Mapping[str, str] = request.options.engine_options
    told = told_options(request.config.precision, info, given)
    if told == given:
        return request, info
    engine.options = replace(request.options, engine_options=dict(told))
    return replace(request, options=engine.options), engine_info(engine, request.engine)


def _float_form(
    ctx: RunContext,
    request: TuneRequest,
    source: Source,
    provider: SampleProvider,
    info: EngineInfo,
    feeds: StoredFeeds,
) -> FloatForm:
    """Choose the float type that the model is tuned in; a converted model is in the scratch folder.

    Raises:
        EngineError: If the engine does not run it in any type.
    """
    config, folder = request.config, ctx.folder
    precision = wanted_type(config.precision, info, source)
    if precision is None:
        return FloatForm()
    earlier = precision_of(folder / JOURNAL)
    if config.precision == AUTO and earlier == UNCHANGED:
        return FloatForm()  # the decision of an earlier run stays
    ctx.reporter.tell("precision", f"converting the model to {precision.value}, and timing both")
    folder.converted.parent.mkdir(exist_ok=True)
    form = convert_to(
        precision, source, folder.converted, provider.evaluation_samples, ctx.engine,
        feeds, config.min_sqnr_db, request.preset,
        may_be_slower=config.precision != AUTO or earlier is not None,
    )  # fmt: skip
    if form.model is None:  # the original model is built under the same name
        logs = folder / LOGS / request.engine
        copy_log(logs / f"{folder.converted.stem}.log", logs / f"{precision.value}.log")
    return form
