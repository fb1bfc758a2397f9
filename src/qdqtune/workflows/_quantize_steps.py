"""The steps of one-shot quantization: place, calibrate, insert, guard, time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration._tensor_capture import observe_shapes, unknown_tensors
from qdqtune.config import QuantizeConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.engines._reopened_comparison import Allowance
from qdqtune.engines._worker import Worker
from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._existing_scales import ReadEncoding
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import QuantizeReport
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.rules._order import draft_placement
from qdqtune.rules._placement_draft import Constraints, Draft, RuleDecision
from qdqtune.search._space import Group, group_ops
from qdqtune.workflows._accuracy_evaluator import (
    AccuracyEvaluator,
    Kernels,
    engine_of_dialect,
    open_kernels,
)
from qdqtune.workflows._accuracy_fallback import AccuracyFallback, FallbackResult, Part, Scaled
from qdqtune.workflows._arguments import constraints_of
from qdqtune.workflows._sample_provider import SampleProvider, ranges_in_every_way, sample_provider
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning._context import SHOWN_EVERY_S, ProgressReporter
from qdqtune.workflows.tuning._final_check import Timed, check_written, time_final, why_not_shipped

TIMING_S = 3.0
"""How long the result is timed against the model as given."""
# Samples that rank parts of a model by what they cost.
_APPROXIMATE_SAMPLES = 2
_AS_WRITTEN = "ONNX operators as they are written"


@dataclass(frozen=True)
class QuantizeRequest:
    """A call of `qdqtune.quantize`, with what its config refers to looked up.

    Attributes:
        config: What is asked for.
        engine: The engine, by name.
        dialect: How Q/DQ is written.
        options: How the engine opens models.
    """

    config: QuantizeConfig
    engine: str
    dialect: Dialect
    options: SessionOptions


@dataclass(frozen=True)
class QuantizeOutcome:
    """What came of it.

    Attributes:
        quantized: The model; None if the one that was given is to be handed back.
        report: Everything but sizes and the file's name.
        fingerprint: Of the float model whose names the placement has.
    """

    quantized: ir.Model | None
    report: QuantizeReport
    fingerprint: str


@dataclass
class _Rules:
    """The rules, and what they are asked about.

    Attributes:
        planner: What can be quantized.
        quant_type: To what.
        constraints: The user's.
        groups: Ops that are alike.
        shapes: Of the inputs.
        shares: Part of the work that each op does.
        left_out: Ops that can't be quantized after all, and why.
    """

    planner: QuantizationPlanner
    quant_type: str
    constraints: Constraints
    groups: tuple[Group, ...]
    shapes: Mapping[str, tuple[int, ...]]
    shares: Mapping[str, float]
    left_out: Mapping[str, RuleDecision] = field(default_factory=dict)

    def draft(self, float_ops: Mapping[str, RuleDecision]) -> Draft:
        """Ask them, when these ops are to stay float."""
        constraints = self.constraints.without({**self.left_out, **float_ops})
        with at_shapes(self.planner.index.model, self.shapes):
            return draft_placement(self.planner, self.quant_type, constraints, self.shares)

    def parts(self, draft: Draft) -> list[Part]:
        """The ops of a draft, like ones together."""
        parts = (draft.chosen.intersection(group.nodes) for group in self.groups)
        return [part for part in parts if part]


class OneShotQuantization:
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
        self._reporter = ProgressReporter(request.config.callbacks, None)
        self._long: dict[str, Callable[[str, int, int | None], None]] = {}
        self._converted_from = ""

    def run(self) -> QuantizeOutcome:
        """All steps.

        Raises:
            QdqtuneError: For any error that the user can act on.
        """
        request = self._request
        config = request.config
        layout = request.dialect.format_of(config.quant_type)
        with self._step("open"):
            source = open_source(
                self._path, layout.least_opset, config.float_type, optimize=config.optimize,
                float_types=request.dialect.float_types,
            )  # fmt: skip
            self._converted_from = source.converted_from
            provider = sample_provider(
                source,
                request.config.input_request,
                request.config.calibration_data,
                request.config.calibration_samples,
            )
        options = request.options.engine_options
        speaker = engine_of_dialect(request.dialect, request.engine, options)
        own = request.options if speaker == request.engine else None
        with reference_worker() as worker, open_kernels(speaker, worker, own) as kernels:
            base = PreparedModel(source.model, self._room)
            guarded, report = self._quantized(source, base, worker, provider, kernels)
            if guarded is None or not guarded.placement:
                reason = "nothing of it can be quantized"
                if guarded is not None:
                    reason = _why_not_accurate(guarded, request.config.min_sqnr_db or 0.0)
                report = replace(report, kept_float=True, reason=reason)
                return QuantizeOutcome(None, report, base.fingerprint)
            with self._step("insert"):
                inserter = guarded.scaled.inserter
                candidate = inserter.write(guarded.placement, "quantized")
                check_written(candidate, inserter, guarded.placement, self._path)
        report = self._timed(report, candidate, provider)
        kept = None if report.kept_float else inserter.model(guarded.placement)
        return QuantizeOutcome(kept, report, base.fingerprint)

    def _quantized(
        self,
        source: Source,
        base: PreparedModel,
        worker: Worker,
        provider: SampleProvider,
        kernels: Kernels | None,
    ) -> tuple[FallbackResult | None, QuantizeReport]:
        """Place, calibrate and guard; nothing is guarded if there is nothing to quantize."""
        request = self._request
        with self._step("place"):
            rules = self._rules(base, worker, provider)
            draft = rules.draft({})
        given = source.reading.encodings if source.reading is not None else {}
        ways: dict[RangeMethod, Ranges] = {}
        if draft.placement():
            ways = self._calibrated(source, base, worker, draft, provider)
            rules.left_out = _without_range(draft, next(iter(ways.values())), given)
            draft = rules.draft({})
        if not draft.placement():
            return None, self._report(draft, provider)

        first = Inserter(
            base, request.dialect, request.config.quant_type, next(iter(ways.values())), given
        )
        accuracy = AccuracyEvaluator(
            source,
            base,
            worker,
            provider.evaluation_samples,
            kernels=kernels,
            approximate_samples=_APPROXIMATE_SAMPLES,
        )
        with contextlib.closing(accuracy):
            scaled = self._scaled(ways, draft.placement(), accuracy, first)
            with self._step("guard"):
                guard = AccuracyFallback(
                    draft, rules.draft, rules.parts(draft), accuracy, worker,
                    provider.evaluation_samples, request.config.min_sqnr_db,
                    self._shown("accuracy"),
                )  # fmt: skip
                guarded = guard.guard(scaled)
        report = self._report(guarded.draft, provider, guarded.placement)
        tried = {way.value: each.quality.worst_db for way, each in scaled.items()}
        return guarded, _with_quality(report, guarded, tried, accuracy.kernels)

    def _rules(self, base: PreparedModel, worker: Worker, provider: SampleProvider) -> _Rules:
        """What the rules are asked about: the model at the shapes that it will run at."""
        request = self._request
        with at_shapes(base.index.model, provider.shapes):
            index = GraphIndex(base.index.model)
            if unknown_tensors(index):
                observe_shapes(base, worker, next(iter(provider.evaluation_samples())))
            planner = QuantizationPlanner(index, request.dialect, request.config.quant_type)
            groups = group_ops(index, planner).groups
            shares = estimated_shares(index)
        constraints = constraints_of(request.config, index)
        return _Rules(
            planner, request.config.quant_type, constraints, groups, provider.shapes, shares
        )

    def _calibrated(
        self,
        source: Source,
        base: PreparedModel,
        worker: Worker,
        draft: Draft,
        provider: SampleProvider,
    ) -> dict[RangeMethod, Ranges]:
        """The ranges of the draft in every way that was asked for."""
        request = self._request
        layout = request.dialect.format_of(request.config.quant_type)
        with self._step("calibrate"):
            return dict(
                ranges_in_every_way(
                    source, base, worker, draft.candidate_edges, provider, layout,
                    request.config.range_method, self._calibrated_so_far,
                )
            )  # fmt: skip

    def _calibrated_so_far(self, done: int, total: int | None) -> None:
        self._shown("calibration")("samples", done, total)
        if self._request.config.progress is not None:
            self._request.config.progress(done, total)

    def _shown(self, stage: str) -> Callable[[str, int, int | None], None]:
        """Something that shows how far a step is, if it takes long."""
        if stage not in self._long:
            self._long[stage] = self._reporter.progress(stage)
        return self._long[stage]

    def _scaled(
        self,
        ways: Mapping[RangeMethod, Ranges],
        placement: Placement,
        accuracy: AccuracyEvaluator,
        inserter: Inserter,
    ) -> dict[RangeMethod, Scaled]:
        """The draft with all of these ranges, and how near each is to the float model."""
        found = {}
        for way, ranges in ways.items():
            with self._step("insert"):
                inserter = inserter.with_ranges(ranges)
                candidate = inserter.write(placement, f"candidate_{way.value}")
            with self._step("judge"):
                found[way] = Scaled(way.value, inserter, accuracy.quality(candidate))
            self._shown("accuracy")("comparing outputs with float, ranges", len(found), len(ways))
        return found

    def _timed(
        self, report: QuantizeReport, candidate: Path, provider: SampleProvider
    ) -> QuantizeReport:
        """Time the candidate against the model as given; what is not faster does not ship."""
        request = self._request
        if request.config.performance_threshold is None:
            return replace(report, not_timed="it was not asked for")
        if (
            not registry.entry(request.engine).worker_class
            or not registry.available(request.engine, request.options.engine_options).usable
        ):
            title = registry.title(request.engine)
            return replace(report, not_timed=f"{title} does not run models here")
        with self._step("time"):
            feeds = next(iter(provider.evaluation_samples()))
            if self._reporter.elapsed_s > SHOWN_EVERY_S:
                self._reporter.tell("final", "timing the result against the model as given")
            (timed,) = time_final(
                lambda opening: Worker(request.engine, request.options, opening=opening),
                self._path, [candidate], feeds, Allowance(TIMING_S),
            )  # fmt: skip
        if not isinstance(timed, Timed):
            return replace(report, kept_float=True, reason=timed)
        reason = why_not_shipped(timed.comparison, request.config.performance_threshold)
        return replace(
            report,
            baseline_ms=timed.baseline_ms,
            final_ms=timed.final_ms,
            comparison=timed.comparison,
            not_timed="",
            kept_float=bool(reason),
            reason=reason,
        )

    def _report(
        self, draft: Draft, provider: SampleProvider, placement: Placement | None = None
    ) -> QuantizeReport:
        """What was decided, before anything is known of the result."""
        request = self._request
        return QuantizeReport(
            output=None,
            engine=request.engine,
            dialect=request.dialect.name,
            quant_type=request.config.quant_type,
            decisions=draft.decisions(placement or Placement()),
            placement=placement or Placement(),
            added={},
            calibration=provider.source.value,
            calibrated_on=provider.describe(),
            method="",
            tried_db={},
            sqnr_db={},
            scores_db={},
            judged_with="",
            bytes_before=0,
            bytes_after=0,
            not_timed="nothing of it is quantized",
            seconds=self._seconds,
            converted_from=self._converted_from,
            min_sqnr_db=request.config.min_sqnr_db,
        )

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began


def _why_not_accurate(guarded: FallbackResult, least_db: float) -> str:
    if guarded.quality.why_unknown:
        return guarded.quality.shortfall(least_db)
    return f"it would be farther from float than {least_db:g} dB"


def _without_range(
    draft: Draft, ranges: Ranges, given: Mapping[str, ReadEncoding]
) -> dict[str, RuleDecision]:
    """Ops that touch tensors which took infinite or undefined values."""
    index = draft.index

    def is_known(tensor: str) -> bool:
        known = tensor in ranges.by_tensor or tensor in given or index.is_constant(tensor)
        return known or not index.is_float(tensor)

    touched = {name: draft.planner.units[name].tensors for name in sorted(draft.chosen)}
    touched |= {edge.node: frozenset({edge.tensor}) for edge in draft.extra}
    found = {}
    for name, tensors in touched.items():
        unknown = [tensor for tensor in sorted(tensors) if not is_known(tensor)]
        if unknown:
            reason = f"{unknown[0]!r} takes infinite or undefined values, or none at all"
            found[name] = RuleDecision("no range", reason)
    return found


def _with_quality(
    report: QuantizeReport,
    guarded: FallbackResult,
    tried_db: Mapping[str, float],
    kernels: Kernels | None,
) -> QuantizeReport:
    """The report with what is known of errors."""
    decisions = [
        replace(each, sqnr_db=guarded.own[each.node].sqnr_db) if each.node in guarded.own else each
        for each in report.decisions
    ]
    of_float = guarded.quality.of_float
    return replace(
        report,
        decisions=tuple(decisions),
        added={
            edge.tensor: rule
            for edge, rule in guarded.draft.extra.items()
            if edge in guarded.placement.edges
        },
        calibration=guarded.scaled.inserter.encoder.ranges.source.value,
        method=guarded.scaled.label,
        tried_db=tried_db,
        sqnr_db=guarded.quality.against_float,
        scores_db=guarded.quality.scores,
        judged_with=registry.title(kernels.engine) if kernels is not None else _AS_WRITTEN,
        float_type=kernels.float_type if kernels is not None else "",
        float_sqnr_db=of_float.worst_db if of_float is not None else None,
    )
