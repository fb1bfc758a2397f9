"""Tuning: one call, and a model is faster, provably; or it comes back as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qdqtune.autotune.search.space import Space
from qdqtune.calibration.logits import has_scores
from qdqtune.calibration.user_code import UserFunction, find_function
from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.latency_shares import estimated_shares
from qdqtune.engines.layer_files import read_layer_info
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.engines.reference_engine import require_reference
from qdqtune.graph.external_data import model_bytes
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.accuracy import DEFAULT_MIN_SQNR_DB
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.precision import AUTO as ANY_PRECISION
from qdqtune.records.ranges import RangeMethod
from qdqtune.records.tuning import (
    DEFAULT_MAX_DROP,
    DEFAULT_OUTPUT_DIR,
    DEFAULT_THRESHOLD,
    TunePlan,
    TuneResult,
)
from qdqtune.workflows.model_argument import on_file
from qdqtune.workflows.name_filters import NameFilters
from qdqtune.workflows.sample_provider import sample_provider
from qdqtune.workflows.source_model import Source, open_source
from qdqtune.workflows.tuning.float_type import check_precision, convertible
from qdqtune.workflows.tuning.folder import AUTO, SUBGRAPHS, RunFolder
from qdqtune.workflows.tuning.layer_groups import check_layer_file
from qdqtune.workflows.tuning.preflight import AS_GIVEN, find_choices, seeds_of
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.request import REGION, SUBGRAPH, WORKFLOWS, Callback, TuneRequest
from qdqtune.workflows.tuning.run import TuneRun
from qdqtune.workflows.tuning.settings import preset_named
from qdqtune.workflows.tuning.shape_ranges import (
    ShapesOrRequest,
    check_ranges,
    options_with_ranges,
    request_of,
    timed_request,
)
from qdqtune.workflows.tuning.subgraph_mode import NOT_TRIED

_NOTHING_SAID = InputRequest()
_LARGE_BYTES = 50_000_000
_FROM_PYTHON = "qdqtune.tune (Python)"
_EVALUATE_EXAMPLE = "(path): return accuracy"


@on_file
def tune(
    model: Path,
    *,
    engine: str = registry.AUTO,
    engine_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    preset: str = "default",
    seed: int = 0,
    budget_s: float | None = None,
    max_benchmarks: int | None = None,
    schemes_per_region: int | None = None,
    timing_runs: int | None = None,
    quant_type: str = "int8",
    inputs: InputRequest = _NOTHING_SAID,
    calibration_data: Any = None,
    calibration_samples: int | None = None,
    calibration_method: RangeMethod | None = None,
    min_sqnr_db: float | None = DEFAULT_MIN_SQNR_DB,
    evaluate: str | Callable[[str], float] | None = None,
    max_drop: float = DEFAULT_MAX_DROP,
    performance_threshold: float = DEFAULT_THRESHOLD,
    qdq_baseline: str | Path | None = None,
    pattern_cache: str | Path | None = None,
    node_filter: Sequence[str] = (),
    region_filter: Sequence[str] = (),
    filters: NameFilters = NameFilters(),  # noqa: B008 - a frozen value
    optimize: bool = True,
    workflow: str = REGION,
    graph_json: str | Path | None = None,
    incremental_validation: bool = True,
    min_shapes: ShapesOrRequest | None = None,
    max_shapes: ShapesOrRequest | None = None,
    precision: str = ANY_PRECISION,
    output_dir: str | Path = DEFAULT_OUTPUT_DIR,
    state_file: str | Path | None = None,
    resume: str = AUTO,
    restart: bool = False,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
    command: str = _FROM_PYTHON,
) -> TuneResult:
    """Find the fastest correct placement of Q/DQ for a model on an engine, and write it.

    The same call on the same folder goes on where an earlier one was stopped, however it was.
    Ctrl-C ends the search; the best model so far is finished and written.

    Args:
        model: A path, a proto or an `onnx_ir.Model`. One with Q/DQ is taken apart first; its own
            placement is then where the search begins, and the file is what has to be beaten.
        engine: What will run the model.
        engine_options: The engine's own options.
        threads: Threads per run; None is the engine's default.
        preset: How thorough to be: ``quick``, ``default`` or ``extensive``.
        seed: Of the search and of random inputs.
        budget_s: Seconds that the whole run may take: the search ends in time to check and to time
            what it found.
        max_benchmarks: End it after so many candidates; None is the preset's number.
        schemes_per_region: The same, as a number for each pattern; `max_benchmarks` goes first.
        timing_runs: Timed runs of each candidate, at least; None is what the preset says.
        quant_type: One of the quant types of the engine's dialect.
        inputs: Shapes to run at; ranges of random inputs.
        calibration_data: As `qdqtune.calibration.sample_set.open_samples` takes it; None is random.
        calibration_samples: Use at most this many samples of it.
        calibration_method: How ranges follow from it; None takes the best of all.
        min_sqnr_db: How near to the float model every output must be; None is not asked.
        evaluate: A function, or ``module:function``, that takes a model's path and returns a
            metric: more is better. It is called on the model as given before anything else.
        max_drop: How much of the metric may be lost.
        performance_threshold: The speedup below which the model is handed back as it was.
        qdq_baseline: A quantized form of the model, whoever made it, to begin with as well.
        pattern_cache: A cache that another run wrote; what it would do is tried as well.
        node_filter: Wildcard patterns of node names: only what matches may be quantized, with
            what is like it.
        region_filter: Wildcard patterns of node names: regions without a matching node are
            skipped, unless they have the pattern of one with a match.
        filters: The same as regular expressions, as `quantize` has them.
        optimize: Whether constants and BatchNorms are folded first.
        workflow: ``region`` tries placements on the whole model; ``subgraph`` profiles the pieces
            that the engine fuses, and tries the best assembly of them: far fewer builds.
        graph_json: In subgraph mode, a file with the layers that the model was built to, which
            tells the pieces instead of the engine.
        incremental_validation: In subgraph mode, whether the assembly is compared with others on
            the whole model, and improved group by group.
        min_shapes: The smallest inputs that the model will get, as a request or as sizes by input:
            for engines that are told ranges of shapes, and in subgraph mode, where pieces are
            measured at `inputs`, and described with the range of shapes that follows.
        max_shapes: The largest ones.
        precision: The float type to tune the model in: ``float32``, ``float16`` or ``bfloat16``.
            ``auto`` converts a float32 model to float16 if the engine takes types as they are
            written, and if it is accurate enough; else it is tuned as it is. What is converted is
            the baseline, and what is handed back; `min_sqnr_db` is about the model as given. An
            engine that chooses float types by itself is told which, and nothing is converted.
            A half-precision model for an engine without integer kernels for such is tuned in
            float32, between Casts: its file is the baseline, and inputs and outputs stay as given.
        output_dir: Where everything is written. One run at a time can use it.
        state_file: Where the state goes, with the pattern cache beside it, and what to go on from
            if it is there: it carries the measurements of its run. None is in the output folder.
        resume: ``auto`` goes on with a run in that folder, ``never`` refuses one.
        restart: Whether to begin anew; a run in that folder is kept aside.
        force: Whether what is in that folder may be replaced, an earlier run included.
        callbacks: Called with every step.
        command: What the summary says this call came from: the command line, if there was one.

    Raises:
        QdqtuneError: Whatever the user can act on.
    """
    reporter = ProgressReporter(callbacks, budget_s)
    name = registry.resolve(engine, engine_options)
    require_reference()
    _check_numbers(seed=seed, max_drop=max_drop, performance_threshold=performance_threshold)
    if budget_s is not None and not budget_s > 0:
        raise UsageError(f"budget_s is {budget_s}.", "It is a number of seconds, above 0.")
    _check_workflow(workflow, name, graph_json, min_shapes, max_shapes, incremental_validation)
    check_precision(precision)
    chosen = preset_named(preset).within(budget_s)
    request = TuneRequest(
        model=Path(model),
        engine=name,
        options=SessionOptions(threads=threads, engine_options=dict(engine_options or {})),
        dialect=native_dialect(name, options=engine_options),
        preset_name=preset,
        preset=chosen if timing_runs is None else chosen.with_runs(timing_runs),
        seed=seed,
        budget_s=budget_s,
        max_benchmarks=max_benchmarks,
        schemes_per_region=schemes_per_region,
        quant_type=quant_type,
        inputs=inputs,
        min_sqnr_db=min_sqnr_db,
        evaluate=_evaluator(evaluate),
        max_drop=max_drop,
        threshold=performance_threshold,
        method=calibration_method,
        qdq_baseline=_path(qdq_baseline),
        pattern_cache=_path(pattern_cache),
        state_file=_path(state_file),
        node_filter=tuple(node_filter),
        region_filter=tuple(region_filter),
        filters=filters,
        optimize=optimize,
        workflow=workflow,
        graph_json=_path(graph_json),
        incremental_validation=incremental_validation,
        min_shapes=request_of(min_shapes),
        max_shapes=request_of(max_shapes),
        precision=precision,
        callbacks=tuple(callbacks),
        command=command,
    )
    layout = request.dialect.format_of(quant_type)
    if model_bytes(request.model) > _LARGE_BYTES:  # else a mistake is told without ado
        reporter.tell("model", f"reading {request.model.name}")
    source = open_source(
        model, layout.least_opset, optimize=optimize,
        float_types=convertible(precision, request.dialect.float_types),
    )  # fmt: skip
    _check_comparable(request, source)
    timed = timed_request(source.model, inputs, request.min_shapes, request.max_shapes)
    provider = sample_provider(
        source, replace(timed, seed=seed), calibration_data, calibration_samples
    )
    all_options = options_with_ranges(
        request.options.engine_options, name, source.model, provider.shapes, request.min_shapes,
        request.max_shapes,
    )  # fmt: skip
    request = replace(request, options=replace(request.options, engine_options=all_options))
    if graph_json is not None:
        check_layer_file(GraphIndex(source.model), graph_json)
    others = [each for each in (request.qdq_baseline, request.graph_json) if each is not None]
    with (
        RunFolder(
            output_dir,
            request.model,
            others,
            force=force,
            restart=restart,
            resume=resume,
            folders=(SUBGRAPHS,) if workflow == SUBGRAPH else (),
        ) as folder,  # fmt: skip
        TuneRun(request, source, provider, folder, reporter) as run,
    ):
        return run.whole()


@on_file
def plan_tune(
    model: Path,
    *,
    engine: str = registry.AUTO,
    engine_options: Mapping[str, str] | None = None,
    preset: str = "default",
    max_benchmarks: int | None = None,
    quant_type: str = "int8",
    inputs: InputRequest = _NOTHING_SAID,
    calibration_data: Any = None,
    node_filter: Sequence[str] = (),
    optimize: bool = True,
    workflow: str = REGION,
    graph_json: str | Path | None = None,
    min_shapes: ShapesOrRequest | None = None,
    max_shapes: ShapesOrRequest | None = None,
    evaluate: str | Callable[[str], float] | None = None,
    precision: str = ANY_PRECISION,
) -> TunePlan:
    """What `tune` would do, found out without running the model; nothing is written.

    Args:
        model: See `tune`, as for all of these.
        engine: What would run the model.
        engine_options: The engine's own options.
        preset: How thorough to be.
        max_benchmarks: End the search after so many candidates.
        quant_type: One of the quant types of the engine's dialect.
        inputs: Shapes to run at.
        calibration_data: Whose first sample says the shapes, if there is any.
        node_filter: Wildcard patterns of node names.
        optimize: Whether constants and BatchNorms are folded first.
        workflow: ``region`` or ``subgraph``.
        graph_json: A file with the layers that the model was built to.
        min_shapes: The smallest inputs that the model will get.
        max_shapes: The largest ones.
        evaluate: What would tell the metric; it is looked up, and not called.
        precision: The float type to tune it in.

    Raises:
        QdqtuneError: Whatever the user can act on.
    """
    name = registry.resolve(engine, engine_options)
    _check_workflow(workflow, name, graph_json, min_shapes, max_shapes)
    _evaluator(evaluate)
    check_precision(precision)
    dialect = native_dialect(name, options=engine_options)
    chosen = preset_named(preset)
    source = open_source(
        model, dialect.format_of(quant_type).least_opset, optimize=optimize,
        float_types=convertible(precision, dialect.float_types),
    )  # fmt: skip
    smallest, largest = request_of(min_shapes), request_of(max_shapes)
    timed = timed_request(source.model, inputs, smallest, largest)
    provider = sample_provider(source, timed, calibration_data, None)
    check_ranges(source.model, provider.shapes, smallest, largest)
    if graph_json is not None:
        check_layer_file(GraphIndex(source.model), graph_json)
    with TemporaryFolder() as folder:
        base = PreparedModel(source.model, folder)
        planner, grouping = find_choices(
            base, dialect, quant_type, provider, node_filter=node_filter
        )
        space = Space(planner, grouping.groups, estimated_shares(planner.index))
        reading = source.reading
        given = {AS_GIVEN: reading.placement.tensors} if reading is not None else {}
        seeds = seeds_of(space, given, grouping)
        most = chosen.limits(len(grouping.groups), grouping.patterns, max_benchmarks).benchmarks
        if workflow == SUBGRAPH:
            seeds = {label: seeds[label] for label in seeds if label not in NOT_TRIED}
            most = chosen.assemblies if max_benchmarks is None else max_benchmarks
        return TunePlan(
            model=str(model),
            engine=name,
            dialect=dialect.name,
            quant_type=quant_type,
            nodes=len(base.nodes),
            regions=grouping.regions,
            patterns=grouping.patterns,
            groups=len(grouping.groups),
            quantizable=len(planner.units),
            left_float=dict(Counter(planner.left_float.values()).most_common()),
            seeds={label: len(space.placement(state).tensors) for label, state in seeds.items()},
            benchmarks=most,
            mode=workflow,
            converted_from=source.converted_from,
        )


def _check_workflow(
    workflow: str,
    engine: str,
    graph_json: str | Path | None,
    min_shapes: ShapesOrRequest | None,
    max_shapes: ShapesOrRequest | None,
    incremental_validation: bool = True,
) -> None:
    if workflow not in WORKFLOWS:
        raise UsageError(f"There is no workflow {workflow!r}.", f"Choices: {', '.join(WORKFLOWS)}.")
    if not isinstance(incremental_validation, bool):
        raise UsageError(
            f"incremental_validation is {incremental_validation!r}.", "It is True or False."
        )
    takes_ranges = registry.entry(engine).takes_shape_ranges
    said = {
        "graph_json": graph_json is not None,
        "min_shapes": min_shapes is not None and not takes_ranges,
        "max_shapes": max_shapes is not None and not takes_ranges,
        "no_incremental_validation": not incremental_validation,
    }
    for name in (name for name in said if said[name] and workflow != SUBGRAPH):
        argument = name.removeprefix("no_")
        raise UsageError(
            f"{argument} (--{name}) is of subgraph mode.",
            f"Choose the workflow {SUBGRAPH} (--workflow {SUBGRAPH}), or leave {argument} out.",
        )
    if graph_json is not None:
        read_layer_info(graph_json)  # what is wrong with it is told before anything is done


def _check_comparable(request: TuneRequest, source: Source) -> None:
    """Refuse a limit at once that could not be checked at the end."""
    if request.min_sqnr_db is None:
        return
    types = [value.dtype for value in source.model.graph.outputs]
    has_floats = any(dtype is None or dtype.is_floating_point() for dtype in types)
    if not has_floats and not has_scores(request.model):
        raise UsageError(
            f"No output of {request.model} holds floats: --min_sqnr {request.min_sqnr_db:g} can't "
            "be checked.",
            "Pass --min_sqnr none, and --evaluate to bound what your own metric may lose.",
        )


def _check_numbers(**numbers: float) -> None:
    for name, value in numbers.items():
        if not value >= 0:
            raise UsageError(f"{name} is {value}.", "It is a number from 0 on.")


def _path(path: str | Path | None) -> Path | None:
    return None if path is None else Path(path)


def _evaluator(evaluate: str | Callable[[str], float] | None) -> UserFunction | None:
    if evaluate is None:
        return None
    if isinstance(evaluate, str):
        return find_function(evaluate, _EVALUATE_EXAMPLE)
    return UserFunction(getattr(evaluate, "__name__", "the evaluate function"), evaluate)
