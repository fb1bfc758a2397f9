"""`quantize`: one-shot quantization, placed by rules or with `--autotune` by a search."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from qdqtune._version import __version__
from qdqtune.config import DEFAULT_THRESHOLD, NameFilters, QuantizeConfig, TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._external_data import external_files, model_bytes
from qdqtune.graph._files import (
    check_targets,
    check_writable,
    load_model,
    save_model,
    write_bytes,
    write_text,
)
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._shapes import at_shapes
from qdqtune.options import configured_to_file, shared
from qdqtune.qdq._quantization_planner import QuantizationPlanner, nothing_dynamic
from qdqtune.records._errors import UsageError
from qdqtune.records._measurement import Comparison
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import Decision, QuantizeReport, QuantizeResult
from qdqtune.records._report import ReportDetails, RunView
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import real_path
from qdqtune.report._quantization import quantize_text
from qdqtune.workflows._arguments import (
    AnyModel,
    as_file,
    choose_dialect,
    constraints_of,
    in_form_of,
    output_file,
)
from qdqtune.workflows._graph_view import NodeFacts, graph_view
from qdqtune.workflows._quantize_steps import QuantizeOutcome, QuantizeRequest, quantize_by_rules
from qdqtune.workflows._report import read_run
from qdqtune.workflows._sample_provider import check_method
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning._tune import tune

_RULE = "measured"
_SUFFIX = ".quant.onnx"


@configured_to_file(QuantizeConfig)
def quantize(
    model: AnyModel, output: str | os.PathLike[str] | None, config: QuantizeConfig
) -> QuantizeResult:
    """Quantize a model by rules: calibrate, place, insert, verify, save.

    Where the engine runs here, the result is timed against the model as given, and shipped only if
    it is faster; otherwise the model comes back as it was, and the report says so.

    Args:
        model: A path, a proto or an `onnx_ir.Model`. One with Q/DQ is taken apart first; its
            scales are kept.
        output: Where to write; for a path, ``MODEL.quant.onnx`` beside it if nothing is said.
        config: What is asked for; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    request = _request(config)
    began = time.monotonic()
    with as_file(model) as path, output_file(model, output, _SUFFIX) as target:
        save_placement, force = config.save_placement, config.force
        check_targets(target, save_placement, path, force=force)
        if config.report is not None:
            check_writable(config.report, force=force)
        bytes_before = model_bytes(path)
        run = Path(config.autotune_output_dir or target.with_name(f"{target.stem}_autotune"))
        with TemporaryFolder(target.parent) as room:
            if config.autotune:
                preset = "default" if config.autotune is True else str(config.autotune)
                made = _quantize_by_search(request, path, preset, run)
            else:
                made = quantize_by_rules(request, path, room)
            if made.quantized is None:
                _hand_back(path, target, force=force)
            else:
                save_model(made.quantized, target, force=force)
        placement = Placement() if made.quantized is None else made.report.placement
        if save_placement is not None:
            write_text(save_placement, placement.to_json(made.fingerprint), force=force)
        result = in_form_of(model, target)
        report = replace(
            made.report,
            placement=placement,
            output=target if output is not None or result is target else None,
            bytes_before=bytes_before,
            bytes_after=model_bytes(target),
            seconds={**made.report.seconds, "total": time.monotonic() - began},
        )
        if config.report is not None:
            from qdqtune.report._html import page_html

            if config.autotune:
                view = read_run(run)
            else:
                view = _view(request, path, report, made.fingerprint)
            write_text(config.report, page_html([view]), force=config.force)
    return QuantizeResult(result, report, quantize_text(report))


def _view(
    request: QuantizeRequest, path: Path, report: QuantizeReport, fingerprint: str
) -> RunView:
    """Describe the result for its page."""
    config = request.config
    least_opset = request.dialect.format_of(config.quant_type).least_opset
    source = open_source(
        path, least_opset, config.float_type, optimize=config.optimize,
        float_types=request.dialect.float_types,
    )  # fmt: skip
    planner = QuantizationPlanner(GraphIndex(source.model), request.dialect, config.quant_type)
    reasons = {
        each.node: each.reason if each.quantized else f"{each.rule}: {each.reason}"
        for each in report.decisions
    }
    graph = graph_view(planner, report.placement, NodeFacts(reasons))
    origin = (
        ("command", config.command),
        ("model", str(path)),
        ("fingerprint", fingerprint),
        ("qdqtune", __version__),
        ("engine", f"{request.engine} {registry.available(request.engine).version or ''}".strip()),
        ("seed", str(config.seed)),
    )
    return RunView(report, str(path), details=ReportDetails(graph=graph), origin=origin)


def _request(config: QuantizeConfig) -> QuantizeRequest:
    """Look up what a config refers to."""
    name, dialect = choose_dialect(config.engine, config.dialect, config.engine_options)
    if name == registry.AUTO:  # the dialect was named, and belongs to an engine
        name = dialect.name.partition("-")[0]
    if config.dynamic and not dialect.dynamic and not dialect.dynamic_by_engine:
        raise nothing_dynamic(dialect)
    if config.range_method is not None:
        check_method(config.range_method, config.calibration_data)
    return QuantizeRequest(
        config,
        name,
        dialect if config.per_channel else replace(dialect, per_channel=False),
        SessionOptions(config.threads, dict(config.engine_options or {})),
    )


def _hand_back(path: Path, target: Path, *, force: bool) -> None:
    """Write the model as it was given: byte for byte if it is one file."""
    if real_path(target) == real_path(path):
        return
    if external_files(path):
        save_model(load_model(path), target, force=force)
    else:
        write_bytes(target, path.read_bytes(), force=force)


def _quantize_by_search(
    request: QuantizeRequest, path: Path, preset: str, folder: Path
) -> QuantizeOutcome:
    """Quantize one model file as `tune` does, and return its measurements unchanged.

    Args:
        request: The request.
        path: The model.
        preset: How thorough to be.
        folder: The run's folder.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    asked, dialect = request.config, request.dialect
    result = tune(path, _search_config(request, preset, folder))
    summary = result.summary
    source = open_source(
        path, dialect.format_of(asked.quant_type).least_opset, optimize=asked.optimize,
        float_types=dialect.float_types,
    )  # fmt: skip
    sqnr_db = summary.output_sqnr_db
    report = QuantizeReport(
        engine=request.engine,
        dialect=dialect.name,
        quant_type=asked.quant_type,
        decisions=_decisions(request, result.placement, source),
        placement=result.placement,
        calibration=summary.calibration,
        calibrated_on=summary.calibrated_on,
        method=summary.calibration_method or "",
        sqnr_db={} if sqnr_db is None else {"(the worst)": sqnr_db},
        judged_with=summary.engine.name,
        baseline_ms=summary.baseline_ms,
        final_ms=summary.final_ms,
        comparison=_comparison(summary),
        not_timed="no candidate came so far" if summary.kept_float else "",
        kept_float=summary.kept_float,
        reason=summary.reason,
        seconds={"search": summary.seconds.total},
        converted_from=summary.converted_from,
        min_sqnr_db=asked.min_sqnr_db,
        float_type=summary.engine.float_type,
        float_sqnr_db=summary.float_sqnr_db,
    )
    quantized = None if summary.kept_float else load_model(result.model)
    return QuantizeOutcome(quantized, report, fingerprint(source.model))


def _search_config(request: QuantizeRequest, preset: str, folder: Path) -> TuneConfig:
    """What `tune` is asked for.

    Raises:
        UsageError: If a search can't do what was asked for.
    """
    asked, dialect = request.config, request.dialect
    own = native_dialect(request.engine, options=request.options.engine_options)
    for is_asked, what in (
        (not dialect.per_channel, "one scale per weight"),
        (asked.dynamic, "--dynamic: it tries that by itself"),
        (asked.precision is not None, "another float type"),
        (own.name != dialect.name, "another dialect"),
    ):
        if is_asked:
            raise UsageError(
                f"A search tunes the model as it is, and can't be combined with {what}.",
                "Leave one of the two out; `qdqtune convert` changes float types.",
            )
    return shared(
        TuneConfig,
        asked,
        engine=request.engine,
        preset=preset,
        seed=asked.input_request.seed,
        performance_threshold=asked.performance_threshold or DEFAULT_THRESHOLD,
        filters=shared(NameFilters, asked),
        precision="float32",
        output_dir=folder,
        force=False,
        report=True,
    )


def _decisions(
    request: QuantizeRequest, placement: Placement, source: Source
) -> tuple[Decision, ...]:
    config = request.config
    shapes = {}
    if config.calibration_data is None:
        shapes = resolve_shapes(source.model, config.input_request)
    with at_shapes(source.model, shapes):
        index = GraphIndex(source.model)
        planner = QuantizationPlanner(index, request.dialect, config.quant_type)
        quantized = planner.quantized(placement)
        constraints = constraints_of(config, index)
    found = []
    for name, node in index.node.items():
        if name not in planner.units and name not in planner.left_float:
            continue
        if name in constraints.never:
            rule, reason = "asked", "it was asked to stay float"
        elif name in quantized or name in placement.dynamic:
            rule, reason = _RULE, "it pays, with what is like it"
        elif name in planner.left_float:
            rule, reason = "no kernel", planner.left_float[name]
        else:
            rule, reason = _RULE, "it does not pay, or was not looked at"
        dynamic = name in placement.dynamic
        is_quantized = name in quantized or dynamic
        found.append(Decision(name, node.op_type, is_quantized, rule, reason, dynamic=dynamic))
    return tuple(found)


def _comparison(summary: Summary) -> Comparison | None:
    if summary.kept_float:
        return None
    low, high = summary.speedup_interval
    return Comparison(summary.speedup, low, high, summary.confidence, 0)
