"""The steps of one-shot quantization: place, calibrate, insert, guard, time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from qdqtune.autotune.search.grouping import group_ops
from qdqtune.calibration.observed import observe_shapes, unknown_tensors
from qdqtune.engines import registry
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker
from qdqtune.engines.reference import reference_worker
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared import PreparedModel
from qdqtune.graph.shapes import at_shapes
from qdqtune.qdq.completion import Completion
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.insert import Inserter
from qdqtune.records.inputs import InputRequest
from qdqtune.records.placement import Placement
from qdqtune.records.precision import Precision
from qdqtune.records.quantization import Decision, QuantizeReport
from qdqtune.records.ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.rules.draft import Draft
from qdqtune.rules.order import draft_placement
from qdqtune.workflows.calibrating import Feeding, Progress, feeding_of, ranges_in_every_way
from qdqtune.workflows.error_guard import ErrorGuard, Guarded, Part, Scaled
from qdqtune.workflows.judging import Judge, Kernels, engine_of_dialect, open_kernels
from qdqtune.workflows.name_filters import NameFilters
from qdqtune.workflows.source import Source, open_source
from qdqtune.workflows.tuning.finish import Timed, check_written, time_final, why_not_shipped

_TIMING_S = 3.0
# Samples that rank parts of a model by what they cost.
_ROUGHLY = 2
_AS_WRITTEN = "ONNX operators as they are written"


@dataclass(frozen=True)
class QuantizeRequest:
    """A call of `qdqtune.quantize`, looked over; see there for what the fields mean."""

    engine: str
    dialect: Dialect
    quant_type: str
    options: SessionOptions
    inputs: InputRequest
    data: Any
    samples: int | None
    method: RangeMethod | None
    filters: NameFilters
    precision: Precision | None
    min_sqnr_db: float | None
    threshold: float | None
    optimize: bool
    progress: Progress | None


@dataclass(frozen=True)
class Made:
    """What came of it.

    Attributes:
        quantized: The model; None if the one that was given is to be handed back.
        report: Everything but sizes and the file's name.
        fingerprint: Of the float model whose names the placement has.
    """

    quantized: ir.Model | None
    report: QuantizeReport
    fingerprint: str


class OneShot:
    """Quantizes one model file.

    Args:
        request: What was asked for.
        path: The model.
        room: A folder for candidates, which has to go afterwards.
    """

    def __init__(self, request: QuantizeRequest, path: Path, room: Path) -> None:
        self._request = request
        self._path = path
        self._room = room
        self._seconds: dict[str, float] = {}

    def run(self) -> Made:
        """All steps.

        Raises:
            QdqtuneError: Whatever the user can act on.
        """
        request = self._request
        layout = request.dialect.format_of(request.quant_type)
        with self._step("open"):
            source = open_source(
                self._path, layout.least_opset, request.precision, optimize=request.optimize
            )
            feeding = feeding_of(source, request.inputs, request.data, request.samples)
        speaker = engine_of_dialect(request.dialect, request.engine)
        with reference_worker() as worker, open_kernels(speaker, worker) as kernels:
            base = PreparedModel(source.model, self._room)
            with self._step("place"):
                draft, parts = self._draft(base, worker, feeding)
                placement = draft.placement()
            made_for = fingerprint(base.index.model)
            if not placement:
                return Made(None, self._unchanged(draft, feeding), made_for)
            judge = Judge(source, base, worker, feeding.judged, kernels=kernels, roughly=_ROUGHLY)
            given = source.reading.encodings if source.reading is not None else {}

            def new_inserter(ranges: Ranges) -> Inserter:
                return Inserter(base, request.dialect, request.quant_type, ranges, given)

            ways = self._calibrated(source, base, worker, draft, feeding)
            scaled = self._scaled(ways, placement, judge, new_inserter)
            with self._step("guard"):
                guard = ErrorGuard(draft, parts, judge, worker, feeding.judged, request.min_sqnr_db)
                guarded = guard.guard(scaled, new_inserter)
            judge.close()
            tried = {way.value: each.quality.worst_db for way, each in scaled.items()}
            report = self._report(draft, feeding, guarded, tried, kernels)
            if not guarded.placement:
                report = replace(report, kept_float=True, reason="it would not be accurate enough")
                return Made(None, report, made_for)
            with self._step("insert"):
                inserter = guarded.scaled.inserter
                candidate = inserter.write(guarded.placement, "quantized")
                check_written(candidate, inserter, guarded.placement, self._path)
        report = self._timed(report, candidate, feeding, speaker)
        report = replace(report, seconds=self._seconds)
        kept = None if report.kept_float else inserter.model(guarded.placement)
        return Made(kept, report, made_for)

    def _draft(
        self, base: PreparedModel, worker: Worker, feeding: Feeding
    ) -> tuple[Draft, list[Part]]:
        """Let the rules decide, at the shapes that the model will run at."""
        request = self._request
        with at_shapes(base.index.model, feeding.shapes):
            index = GraphIndex(base.index.model)
            if unknown_tensors(index):
                observe_shapes(base, worker, next(iter(feeding.judged())))
            completion = Completion(index, request.dialect, request.quant_type)
            draft = draft_placement(completion, request.quant_type, request.filters.wishes(index))
            groups = group_ops(index, completion).groups
        parts = [draft.chosen & set(group.nodes) for group in groups]
        return draft, [part for part in parts if part]

    def _calibrated(
        self,
        source: Source,
        base: PreparedModel,
        worker: Worker,
        draft: Draft,
        feeding: Feeding,
    ) -> dict[RangeMethod, Ranges]:
        """The ranges of the draft in every way that was asked for."""
        request = self._request
        layout = request.dialect.format_of(request.quant_type)
        with self._step("calibrate"):
            return dict(
                ranges_in_every_way(
                    source, base, worker, draft.placement(), feeding, layout,
                    request.method, request.progress,
                )
            )  # fmt: skip

    def _scaled(
        self,
        ways: Mapping[RangeMethod, Ranges],
        placement: Placement,
        judge: Judge,
        new_inserter: Callable[[Ranges], Inserter],
    ) -> dict[RangeMethod, Scaled]:
        """The draft with all of these ranges, and how near each is to the float model."""
        found = {}
        for way, ranges in ways.items():
            with self._step("insert"):
                inserter = new_inserter(ranges)
                candidate = inserter.write(placement, f"candidate_{way.value}")
            with self._step("judge"):
                found[way] = Scaled(way.value, inserter, judge.quality(candidate))
        return found

    def _timed(
        self, report: QuantizeReport, candidate: Path, feeding: Feeding, speaker: str | None
    ) -> QuantizeReport:
        """Time the candidate against the model as given; what is not faster does not ship."""
        request = self._request
        if request.threshold is None:
            return replace(report, not_timed="it was not asked for")
        if speaker is None or not registry.entry(speaker).worker_class:
            title = registry.title(request.engine)
            return replace(report, not_timed=f"{title} does not run models here")
        with self._step("time"), Worker(speaker, request.options) as worker:
            feeds = next(iter(feeding.judged()))
            (timed,) = time_final(worker, self._path, [candidate], feeds, _TIMING_S)
        if not isinstance(timed, Timed):
            return replace(report, kept_float=True, reason=timed)
        reason = why_not_shipped(timed.comparison, request.threshold)
        return replace(
            report,
            baseline_ms=timed.baseline_ms,
            final_ms=timed.final_ms,
            comparison=timed.comparison,
            kept_float=bool(reason),
            reason=reason,
        )

    def _report(
        self,
        draft: Draft,
        feeding: Feeding,
        guarded: Guarded,
        tried_db: Mapping[str, float],
        kernels: Kernels | None,
    ) -> QuantizeReport:
        report = self._unchanged(draft, feeding, guarded.placement)
        decisions = [_with_error(each, guarded) for each in report.decisions]
        return replace(
            report,
            decisions=tuple(decisions),
            added={edge.tensor: rule for edge, rule in draft.extra.items()},
            calibration=guarded.scaled.inserter.encoder.ranges.source.value,
            method=guarded.scaled.label,
            tried_db=tried_db,
            sqnr_db=guarded.quality.against_float,
            judged_with=registry.title(kernels.engine) if kernels is not None else _AS_WRITTEN,
            kept_float=False,
            reason="",
        )

    def _unchanged(
        self, draft: Draft, feeding: Feeding, placement: Placement | None = None
    ) -> QuantizeReport:
        """The report if nothing of the model can be quantized."""
        request = self._request
        return QuantizeReport(
            output=None,
            engine=request.engine,
            dialect=request.dialect.name,
            quant_type=request.quant_type,
            decisions=draft.decisions(placement or Placement()),
            placement=placement or Placement(),
            added={},
            calibration=CalibrationSource.RANDOM.value,
            calibrated_on=feeding.describe(),
            method=RangeMethod.MAX.value,
            tried_db={},
            sqnr_db={},
            judged_with="",
            bytes_before=0,
            bytes_after=0,
            not_timed="nothing of it is quantized",
            kept_float=True,
            reason="nothing of it can be quantized",
            seconds=self._seconds,
        )

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began


def _with_error(decision: Decision, guarded: Guarded) -> Decision:
    """A decision with what the error guard found out, and what it made of it."""
    error = guarded.own.get(decision.node)
    if error is not None:
        decision = replace(decision, sqnr_db=error.sqnr_db)
    if decision.node in guarded.dropped and not decision.quantized:
        return replace(decision, rule="accuracy", reason=guarded.dropped[decision.node])
    return decision
