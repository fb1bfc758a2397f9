"""`quantize`: one-shot quantization with a placement from rules.

Or from a search with `--autotune`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from qdqtune.config import NameFilters, QuantizeConfig, TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._external_data import external_files, model_bytes
from qdqtune.graph._files import check_targets, load_model, save_model, write_bytes, write_text
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._shapes import at_shapes
from qdqtune.options import configured_to_file, shared
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import UsageError
from qdqtune.records._measurement import Comparison
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import Decision, QuantizeReport, QuantizeResult
from qdqtune.records._tuning import DEFAULT_THRESHOLD, Summary, TuneResult
from qdqtune.records._untrusted_files import real_path
from qdqtune.report._quantization import quantize_text
from qdqtune.rules._placement_draft import Constraints
from qdqtune.workflows._arguments import AnyModel, as_file, constraints_of, in_form_of
from qdqtune.workflows._quantize_steps import OneShotQuantization, QuantizeOutcome, QuantizeRequest
from qdqtune.workflows._sample_provider import check_method
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning._tune import tune

_RULE = "measured"


class AutotunedQuantization:
    """Quantizes one model file as `tune` does.

    Args:
        request: The request.
        path: The model.
        preset: How thorough to be.
        folder: The run's folder.
    """

    def __init__(self, request: QuantizeRequest, path: Path, preset: str, folder: Path) -> None:
        self._request = request
        self._path = path
        self._preset = preset
        self._folder = folder

    def run(self) -> QuantizeOutcome:
        """Run the search and return its measurements unchanged.

        Raises:
            QdqtuneError: For any error that the user can act on.
        """
        request = self._request
        for is_asked, what in (
            (not request.dialect.per_channel, "one scale per weight"),
            (request.config.precision is not None, "another float type"),
            (not self._has_dialect(), "another dialect"),
        ):
            if is_asked:
                raise UsageError(
                    f"A search is for the model as it is, not with {what}.",
                    "Leave one of the two out; `qdqtune convert` changes float types.",
                )
        asked = request.config
        config = shared(
            TuneConfig,
            asked,
            engine=request.engine,
            preset=self._preset,
            seed=asked.input_request.seed,
            performance_threshold=asked.performance_threshold or DEFAULT_THRESHOLD,
            filters=shared(NameFilters, asked),
            precision="float32",
            output_dir=self._folder,
            force=False,
        )
        result = tune(self._path, config)
        layout = request.dialect.format_of(request.config.quant_type)
        source = open_source(
            self._path, layout.least_opset, optimize=request.config.optimize,
            float_types=request.dialect.float_types,
        )  # fmt: skip
        quantized = None if result.summary.kept_float else load_model(result.model)
        return QuantizeOutcome(quantized, self._report(result, source), fingerprint(source.model))

    def _has_dialect(self) -> bool:
        request = self._request
        own = native_dialect(request.engine, options=request.options.engine_options)
        return own.name == request.dialect.name

    def _report(self, result: TuneResult, source: Source) -> QuantizeReport:
        request, summary = self._request, result.summary
        sqnr = summary.output_sqnr_db
        return QuantizeReport(
            output=None,
            engine=request.engine,
            dialect=request.dialect.name,
            quant_type=request.config.quant_type,
            decisions=self._decisions(result, source),
            placement=result.placement,
            added={},
            calibration=summary.calibration,
            calibrated_on=summary.calibrated_on,
            method=summary.calibration_method or "",
            tried_db={},
            sqnr_db={} if sqnr is None else {"(the worst)": sqnr},
            scores_db={},
            judged_with=summary.engine.name,
            bytes_before=0,
            bytes_after=0,
            baseline_ms=summary.baseline_ms,
            final_ms=summary.final_ms,
            comparison=_comparison(summary),
            not_timed="no candidate came so far" if summary.kept_float else "",
            kept_float=summary.kept_float,
            reason=summary.reason,
            seconds={"search": summary.seconds.total},
            converted_from=summary.converted_from,
            min_sqnr_db=request.config.min_sqnr_db,
            float_type=summary.engine.float_type,
            float_sqnr_db=summary.float_sqnr_db,
        )

    def _decisions(self, result: TuneResult, source: Source) -> tuple[Decision, ...]:
        request = self._request
        shapes = (
            resolve_shapes(source.model, request.config.input_request)
            if request.config.calibration_data is None
            else {}
        )
        with at_shapes(source.model, shapes) if shapes else contextlib.nullcontext():
            index = GraphIndex(source.model)
            planner = QuantizationPlanner(index, request.dialect, request.config.quant_type)
            quantized = planner.quantized(result.placement)
            constraints = constraints_of(request.config, index)
        return tuple(
            Decision(
                name, node.op_type, name in quantized, *_why(name, quantized, planner, constraints)
            )
            for name, node in index.node.items()
            if name in planner.units or name in planner.left_float
        )


def _why(
    name: str, quantized: frozenset[str], planner: QuantizationPlanner, constraints: Constraints
) -> tuple[str, str]:
    if name in constraints.never:
        return "asked", "it was asked to stay float"
    if name in quantized:
        return _RULE, "it pays, with what is like it"
    if name in planner.left_float:
        return "no kernel", planner.left_float[name]
    return _RULE, "it does not pay, or was not looked at"


def _comparison(summary: Summary) -> Comparison | None:
    if summary.kept_float:
        return None
    low, high = summary.speedup_interval
    return Comparison(summary.speedup, low, high, summary.confidence, 0)


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
    with as_file(model) as path, _target_file(model, path, output) as target:
        save_placement, force = config.save_placement, config.force
        check_targets(target, save_placement, path, force=force)
        bytes_before = model_bytes(path)
        with TemporaryFolder(target.parent) as room:
            if config.autotune:
                preset = "default" if config.autotune is True else str(config.autotune)
                run = config.autotune_output_dir or target.with_name(f"{target.stem}_autotune")
                made = AutotunedQuantization(request, path, preset, Path(run)).run()
            else:
                made = OneShotQuantization(request, path, room).run()
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
    return QuantizeResult(result, report, quantize_text(report))


def _request(config: QuantizeConfig) -> QuantizeRequest:
    """Look up what a config refers to."""
    name, dialect = _target(config.engine, config.dialect, config.engine_options)
    if config.range_method is not None:
        check_method(config.range_method, config.calibration_data)
    return QuantizeRequest(
        config,
        name,
        dialect if config.per_channel else replace(dialect, per_channel=False),
        SessionOptions(config.threads, dict(config.engine_options or {})),
    )


def _target(
    engine: str, dialect: str | None, options: Mapping[str, str] | None
) -> tuple[str, Dialect]:
    """The engine, and the dialect that is written for it."""
    name, version = registry.versioned(engine)
    if dialect is not None:
        family = dialect_named(dialect).name.partition("-")[0]
        return family if name == registry.AUTO else name, dialect_named(dialect)
    if name == registry.AUTO:
        name = registry.resolve(name)
    return name, native_dialect(name, version, options=options)


@contextmanager
def _target_file(
    model: AnyModel, path: Path, output: str | os.PathLike[str] | None
) -> Iterator[Path]:
    """Where the result is written; beside a model in memory only for a while."""
    if output is not None:
        yield Path(output)
    elif isinstance(model, str | os.PathLike):
        yield path.with_name(path.stem + _SUFFIX)
    else:
        with TemporaryFolder() as folder:
            yield folder / "quantized.onnx"


def _hand_back(path: Path, target: Path, *, force: bool) -> None:
    """Write the model as it was given: byte for byte if it is one file."""
    if real_path(target) == real_path(path):
        return
    if external_files(path):
        save_model(load_model(path), target, force=force)
    else:
        write_bytes(target, path.read_bytes(), force=force)
