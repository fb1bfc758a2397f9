"""`quantize --autotune`: quantization with a searched placement instead of a rule-based one."""

from __future__ import annotations

import contextlib
from pathlib import Path

from qdqtune.config import NameFilters, TuneConfig
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.graph.files import load_model
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import resolve_shapes
from qdqtune.graph.shapes import at_shapes
from qdqtune.options import shared
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.errors import UsageError
from qdqtune.records.measurement import Comparison
from qdqtune.records.quantization import Decision, QuantizeReport
from qdqtune.records.tuning import DEFAULT_THRESHOLD, Summary, TuneResult
from qdqtune.rules.placement_draft import Constraints
from qdqtune.workflows.name_filters import constraints_of
from qdqtune.workflows.quantize_steps import QuantizeOutcome, QuantizeRequest
from qdqtune.workflows.source_model import Source, open_source
from qdqtune.workflows.tune import tune

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
