"""How a run begins: what can be wrong is found out, then the model gets its float type.

Until the journal is open, nothing that another run has left in the folder is replaced.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.records._accuracy import METRIC, checked_metric
from qdqtune.records._errors import UsageError
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._precision import AUTO
from qdqtune.records._tuning import AS_GIVEN as UNCHANGED
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.workflows._bench import engine_info
from qdqtune.workflows._convert import FloatForm, convert_to, told_options, wanted_type
from qdqtune.workflows._sample_provider import SampleProvider
from qdqtune.workflows._source_model import Source, activations_in, check_same_model, open_source
from qdqtune.workflows.tuning._context import ProgressReporter, RunContext, TuneRequest
from qdqtune.workflows.tuning._folder import BASELINE, JOURNAL, LOGS, RunFolder
from qdqtune.workflows.tuning._header import check_state_file, precision_of
from qdqtune.workflows.tuning._layer_groups import copy_log
from qdqtune.workflows.tuning._preflight import AS_GIVEN
from qdqtune.workflows.tuning._snapshots import given_cache


@dataclass(frozen=True)
class TuningTarget:
    """What a run tunes.

    Attributes:
        request: What was asked for.
        source: The model.
        fingerprint: Of the model.
        info: What measures.
        provider: What the model is run on.
        feeds: The inputs that every model is timed on.
        form: Its float type.
        given: Tensors that are quantized in files that somebody made of it, by what they are
            called.
        cache: What other runs found of patterns.
        float_metric: The user's metric of the model as given; None without a metric.
    """

    request: TuneRequest
    source: Source
    fingerprint: str
    info: EngineInfo
    provider: SampleProvider
    feeds: StoredFeeds
    form: FloatForm = field(default_factory=FloatForm)
    given: Mapping[str, Collection[str]] = field(default_factory=dict)
    cache: PatternCache | None = None
    float_metric: float | None = None

    def header(self) -> dict[str, object]:
        """What measurements depend on."""
        # Runs of versions that did not convert have no such entry.
        is_given = self.form.name == UNCHANGED
        precision = {} if is_given else {"precision": self.form.name}
        return {
            **precision,
            "model": self.fingerprint,
            "engine": self.info.to_dict(),
            "dialect": self.request.dialect.name,
            "quant_type": self.request.config.quant_type,
            "shapes": {name: list(shape) for name, shape in self.provider.shapes.items()},
        }


def setup(
    ctx: RunContext, request: TuneRequest, source: Source, provider: SampleProvider
) -> TuningTarget:
    """Check the request, start the engine, and convert the model if another float type pays.

    Args:
        ctx: The run.
        request: What was asked for.
        source: The model.
        provider: What it is run on.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    reporter, engine = ctx.reporter, ctx.engines.engine
    given = given_tensors(request, source, reporter.tell)
    check_first(request, source, ctx.folder)
    float_metric = _evaluate_float(ctx, request)
    ctx.folder.begin()
    began_s = reporter.elapsed_s
    request, info = ask_engine(request, engine)
    ctx.budget.start_s = reporter.elapsed_s - began_s
    reporter.tell("engine", f"{registry.title(request.engine)} {info.version} on {info.device}")
    feeds = engine.store(next(iter(provider.evaluation_samples())))
    target = TuningTarget(
        request, source, fingerprint(source.model), info, provider, feeds, given=given,
        float_metric=float_metric,
    )  # fmt: skip
    wanted = wanted_type(request.config.precision, info, source)
    if wanted is not None:
        reporter.tell("precision", f"converting the model to {wanted.value}, and timing both")
    target = in_float_type(target, engine, ctx.folder)
    _tell_form(target, reporter)
    cache = request.config.pattern_cache
    return target if cache is None else replace(target, cache=given_cache(Path(cache)))


def _evaluate_float(ctx: RunContext, request: TuneRequest) -> float | None:
    """The metric of the model as given: a function that fails is to fail at once.

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


def _tell_form(target: TuningTarget, reporter: ProgressReporter) -> None:
    form, converted_from = target.form, target.source.converted_from
    if converted_from:
        reporter.tell(
            "precision",
            f"{target.request.dialect.name} has no integer kernels for {converted_from}: the "
            f"model is tuned in float32; inputs and outputs keep their types",
        )
    if form.model is not None:
        error = f", {form.sqnr_db:.1f} dB from it" if form.sqnr_db is not None else ""
        gain = f", {form.speedup:.2f}x as fast" if form.speedup is not None else ""
        reporter.tell("precision", f"the model is tuned in {form.name}{error}{gain}")


def check_first(request: TuneRequest, source: Source, folder: RunFolder) -> None:
    """Find out what can be wrong with a request before anything in the folder changes.

    Raises:
        QdqtuneError: If something is.
    """
    nodes = [node.name or "" for node in source.model.graph]
    for wildcards in (request.config.node_filter, request.config.region_filter):
        if wildcards and not any(fnmatch.filter(nodes, each) for each in wildcards):
            raise UsageError(
                "No node of the model matches the node filter.",
                f"Its patterns are: {', '.join(wildcards)}.",
            )
    if request.state_file is not None:
        check_state_file(request.state_file, fingerprint(source.model), request.config.quant_type)
    if folder.replaces_a_run:  # it must be sure that there will be another one
        with Worker(request.engine, request.options, scratch=folder.scratch) as probe:
            engine_info(probe, request.engine)


def given_tensors(
    request: TuneRequest, source: Source, tell: Callable[[str, str], None]
) -> dict[str, frozenset[str]]:
    """What is quantized in files that somebody made of the model.

    Args:
        request: What was asked for.
        source: The model.
        tell: Hears how much of such a file is in the model.

    Raises:
        QdqtuneError: If such a file is not one of that model.
    """
    found: dict[str, frozenset[str]] = {}
    if source.reading is not None:
        found[AS_GIVEN] = source.reading.placement.tensors
    if request.config.qdq_baseline is not None:
        path = Path(request.config.qdq_baseline)
        baseline = open_source(path, optimize=request.config.optimize)
        reading = baseline.reading
        if reading is None:
            raise UsageError(
                f"{path} has no Q/DQ to begin with.",
                "Name a quantized form of the model, or leave --qdq_baseline out.",
            )
        check_same_model(source.model, baseline.model, path)
        activations, known = activations_in(source.model, baseline.model, reading.placement)
        if not known:
            raise UsageError(
                f"None of the {activations} activations that are quantized in "
                f"{path} is in the model.",
                "Quantize the model with a tool that keeps the names of tensors.",
            )
        tell(
            "Q/DQ baseline",
            f"of the {activations} activations that are quantized in {path}, "
            f"{len(known)} are in the model",
        )
        found["Q/DQ baseline"] = reading.placement.tensors | known
    return found


def ask_engine(request: TuneRequest, engine: Worker) -> tuple[TuneRequest, EngineInfo]:
    """What measures; one that chooses float types by itself is told which is wanted.

    Returns:
        The request with the options that are in effect, and the engine.

    Raises:
        QdqtuneError: If it does not start, or its options say something else.
    """
    info = engine_info(engine, request.engine)
    given: Mapping[str, str] = request.options.engine_options
    told = told_options(request.config.precision, info, given)
    if told == given:
        return request, info
    engine.options = replace(request.options, engine_options=dict(told))
    return replace(request, options=engine.options), engine_info(engine, request.engine)


def in_float_type(target: TuningTarget, engine: Worker, folder: RunFolder) -> TuningTarget:
    """The model in the float type that it is tuned in; a converted one lies in the scratch folder.

    Raises:
        EngineError: If the engine does not run it in any.
        UsageError: If a state file is that of another form of the model.
    """
    request, source = target.request, target.source
    precision = wanted_type(request.config.precision, target.info, source)
    earlier = precision_of(folder / JOURNAL)
    if request.config.precision == AUTO and earlier == UNCHANGED:
        precision = None  # what was found out stays
    if precision is not None:
        folder.converted.parent.mkdir(exist_ok=True)
        form = convert_to(
            precision, source, folder.converted, target.provider.evaluation_samples, engine,
            target.feeds, request.config.min_sqnr_db, request.preset,
            may_be_slower=request.config.precision != AUTO or earlier is not None,
        )  # fmt: skip
        target = replace(target, form=form)
        if form.model is None:  # the model as given is built under the same name
            logs = folder / LOGS / request.engine
            copy_log(logs / f"{folder.converted.stem}.log", logs / f"{precision.value}.log")
        else:
            layout = request.dialect.format_of(request.config.quant_type)
            source = open_source(form.model, layout.least_opset, optimize=request.config.optimize)
            target = replace(
                target,
                request=replace(request, converted=folder / BASELINE),
                source=source,
                fingerprint=fingerprint(source.model),
            )
    if request.state_file is not None:
        check_state_file(
            request.state_file, target.fingerprint, request.config.quant_type, target.form.name
        )
    return target
