"""The stages of one-shot quantization: open, place, calibrate, guard, insert, time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration._instrumentation import observe_shapes, unknown_tensors
from qdqtune.config import NONE, QuantizeConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import Allowance
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._pool import WorkerPool
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.engines._worker import Worker
from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._encoding import ReadEncoding
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import QuantizeReport
from qdqtune.records._ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.rules._order import draft_placement
from qdqtune.rules._placement_draft import Constraints, Draft, RuleDecision
from qdqtune.search._space import Group, group_ops
from qdqtune.workflows._accuracy_evaluator import (
    AccuracyEvaluator,
    Kernels,
    engine_of_dialect,
    open_kernels,
)
from qdqtune.workflows._accuracy_fallback import (
    AccuracyFallback,
    FallbackResult,
    Part,
    Scaled,
    joined,
)
from qdqtune.workflows._arguments import constraints_of
from qdqtune.workflows._bias_correction import is_worth_trying, with_corrected_biases
from qdqtune.workflows._input_smoothing import LEAST_GAIN_DB, with_smoothed_inputs
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._sample_provider import (
    SampleProvider,
    is_copied_constant,
    ranges_in_every_way,
    sample_provider,
)
from qdqtune.workflows._source_model import Source, open_source
from qdqtune.workflows.tuning._final_check import check_written, time_final
from qdqtune.workflows.tuning._final_round import Finalist, FinalRound, Objective, Role

TIMING_S = 3.0
"""How long the result is timed against the model as given."""
# Samples that rank parts of a model by what they cost.
_APPROXIMATE_SAMPLES = 2
_AS_WRITTEN = "ONNX operators as they are written"
_NOTHING = Placement()


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


def quantize_by_rules(request: QuantizeRequest, path: Path, room: Path) -> QuantizeOutcome:
    """Quantize one model file: open, place, calibrate, guard, insert, time.

    Args:
        request: What was asked for.
        path: The model.
        room: A folder for candidates, which has to go afterwards.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    config, dialect = request.config, request.dialect
    steps = _Steps(config)
    with steps.step("open", "model", f"reading and folding {path.name}"):
        source = open_source(
            path, dialect.format_of(config.quant_type).least_opset, config.float_type,
            optimize=config.optimize, float_types=dialect.float_types,
        )  # fmt: skip
        provider = sample_provider(
            source, config.input_request, config.calibration_data, config.calibration_samples,
            config,
        )  # fmt: skip
    speaker = engine_of_dialect(dialect, request.engine, request.options.engine_options)
    own = request.options if speaker == request.engine else None
    with reference_worker() as worker, open_kernels(speaker, worker, own) as kernels:
        base = PreparedModel(source.model, room)
        target = _Target(request, source, base, worker, provider, kernels, steps)
        with steps.step("place", "model", "finding what can be quantized"):
            rules = _place(target)
            draft = rules.draft({})
        ways: dict[RangeMethod, Ranges] = {}
        if draft.placement():
            with steps.step("calibrate", "calibration", f"on {provider.describe()}"):
                ways = ranges_in_every_way(
                    source, base, worker, draft.candidate_edges, provider,
                    dialect.format_of(config.quant_type), config.range_method,
                    steps.reporter.counter("calibration", "samples, then ranges from them"),
                )  # fmt: skip
            rules = replace(rules, left_out=_without_range(draft, ways, source.encodings))
            draft = rules.draft({})
        if not draft.placement():
            return target.outcome(None, target.report(draft, "nothing of it can be quantized"))
        finals = _guard(target, rules, draft, ways)
        if not finals[0].guarded.placement:
            return target.outcome(None, finals[0].report)
        with steps.step("insert", "model", "writing the result"):
            for final in finals:
                check_written(final.file, final.inserter, final.guarded.placement, path)
    final = _time(target, finals)
    is_kept = final.report.kept_float
    kept = None if is_kept else final.inserter.model(final.guarded.placement)
    return target.outcome(kept, final.report)


@dataclass(frozen=True)
class _Final:
    """What may be handed over.

    Attributes:
        role: Why.
        guarded: The model.
        report: What is said of it.
    """

    role: Role
    guarded: FallbackResult
    report: QuantizeReport

    @property
    def inserter(self) -> Inserter:
        """What writes it."""
        return self.guarded.scaled.inserter

    @cached_property
    def file(self) -> Path:
        """Its file, written when it is wanted."""
        return self.inserter.write(self.guarded.placement, f"quantized_{self.role.name.lower()}")

    def as_finalist(self) -> Finalist:
        """It as a model of the last comparison."""
        name, placement = self.role.value, self.guarded.placement
        return Finalist(
            name, frozenset(), placement, self.file, sqnr_db=self.guarded.quality.worst_db,
            role=self.role,
        )  # fmt: skip


class _Steps:
    """How long the steps took, and what reports them."""

    def __init__(self, config: QuantizeConfig) -> None:
        self.seconds: dict[str, float] = {}
        self.reporter = ProgressReporter(config.callbacks)

    @contextlib.contextmanager
    def step(self, name: str, stage: str = "", message: str = "") -> Iterator[None]:
        """Take the time of a step, and report it if it has a message."""
        if message:
            self.reporter.tell(stage, message)
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began


@dataclass(frozen=True)
class _Target:
    """The model, and what evaluates it.

    Attributes:
        request: What was asked for.
        source: The model as it was opened.
        base: What is inserted into.
        worker: Of the reference engine.
        provider: The samples.
        kernels: Those that count; None runs every op as it is written.
        steps: How long it takes.
    """

    request: QuantizeRequest
    source: Source
    base: PreparedModel
    worker: Worker
    provider: SampleProvider
    kernels: Kernels | None
    steps: _Steps

    @cached_property
    def why_not_timed(self) -> str:
        """Why models are not timed; empty if they are."""
        request = self.request
        if request.config.performance_threshold is None:
            return "it was not asked for"
        entry = registry.entry(request.engine)
        usable = registry.available(request.engine, request.options.engine_options).usable
        if not entry.worker_class or not usable:
            return f"{registry.title(request.engine)} does not run models here"
        return ""

    def report(self, draft: Draft, reason: str, placement: Placement = _NOTHING) -> QuantizeReport:
        """What was decided, before the result is timed; with a reason the model stays float."""
        config = self.request.config
        return QuantizeReport(
            engine=self.request.engine,
            dialect=self.request.dialect.name,
            quant_type=config.quant_type,
            decisions=draft.decisions(placement),
            placement=placement,
            calibration=self.provider.source.value,
            calibrated_on=self.provider.describe(),
            not_timed="nothing of it is quantized",
            kept_float=bool(reason),
            reason=reason,
            converted_from=self.source.converted_from,
            min_sqnr_db=config.min_sqnr_db,
        )

    def outcome(self, quantized: ir.Model | None, report: QuantizeReport) -> QuantizeOutcome:
        """What came of it, with the time that it took."""
        report = replace(report, seconds=self.steps.seconds)
        return QuantizeOutcome(quantized, report, self.base.fingerprint)


@dataclass(frozen=True)
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
        left, parts = set(draft.quantized), []
        for group in self.groups:  # one op may be in several, in another form in each
            if part := left.intersection(group.nodes):
                parts.append(frozenset(part))
                left -= part
        return joined(parts)


def _place(target: _Target) -> _Rules:
    """What the rules are asked about: the model at the shapes that it will run at."""
    request, base, provider = target.request, target.base, target.provider
    quant_type = request.config.quant_type
    with at_shapes(base.index.model, provider.shapes):
        index = GraphIndex(base.index.model)
        if unknown_tensors(index):
            observe_shapes(base, target.worker, next(iter(provider.evaluation_samples())))
        planner = QuantizationPlanner(index, request.dialect, quant_type)
        groups = group_ops(index, planner).groups
        shares = estimated_shares(index)
    constraints = replace(constraints_of(request.config, index), dynamic=request.config.dynamic)
    return _Rules(planner, quant_type, constraints, groups, provider.shapes, shares)


def _without_range(
    draft: Draft, ways: Mapping[RangeMethod, Ranges], given: Mapping[str, ReadEncoding]
) -> dict[str, RuleDecision]:
    """Ops that touch tensors which took infinite or undefined values."""
    index, ranges = draft.index, next(iter(ways.values()))
    if ranges.source is CalibrationSource.NONE:
        return {}  # nothing needs one
    edges = index.effective(draft.candidate_edges)

    def is_known(tensor: str) -> bool:
        known = tensor in ranges.by_tensor or tensor in given or not index.is_float(tensor)
        return known or is_copied_constant(index, edges, tensor)

    touched = {name: draft.planner.units[name].tensors for name in sorted(draft.chosen)}
    touched |= {edge.node: frozenset({edge.tensor}) for edge in draft.extra}
    found = {}
    for name, tensors in touched.items():
        unknown = [tensor for tensor in sorted(tensors) if not is_known(tensor)]
        if unknown:
            reason = f"{unknown[0]!r} takes infinite or undefined values, or none at all"
            found[name] = RuleDecision("no range", reason)
    return found


def _guard(
    target: _Target, rules: _Rules, draft: Draft, ways: Mapping[RangeMethod, Ranges]
) -> list[_Final]:
    """Try the draft with all ranges, and let ops stay float until the outputs are near enough.

    Returns:
        What comes of it, and the whole draft with smoothed inputs if that is near enough, too.
    """
    config, steps, samples = target.request.config, target.steps, target.provider.evaluation_samples
    inserter = Inserter(
        target.base, target.request.dialect, config.quant_type, next(iter(ways.values())),
        target.source.encodings,
    )  # fmt: skip
    accuracy = AccuracyEvaluator(
        target.source, target.base, target.worker, samples, kernels=target.kernels,
        approximate_samples=_APPROXIMATE_SAMPLES,
    )  # fmt: skip
    scaled: dict[RangeMethod, Scaled] = {}
    steps.reporter.tell("accuracy", "comparing outputs with the float model")
    progress = steps.reporter.progress("accuracy")
    with contextlib.closing(accuracy):
        for way, ranges in ways.items():
            with steps.step("insert"):
                inserter = inserter.with_ranges(ranges)
                candidate = inserter.write(draft.placement(), f"candidate_{way.value}")
            with steps.step("judge"):
                scaled[way] = Scaled(way.value, inserter, accuracy.quality(candidate))
            progress("kinds of ranges compared", len(scaled), len(ways))
        with steps.step("guard"):
            fallback = AccuracyFallback(
                draft, rules.draft, rules.parts(draft), accuracy, target.worker, samples,
                config.min_sqnr_db, progress,
            )  # fmt: skip
            guarded = fallback.guard(
                scaled, lambda one: _with_better_biases(target, accuracy, draft, one)
            )
            found = {Role.RESULT: guarded}
            best = max(scaled.values(), key=lambda each: each.quality.worst_db)
            if smoothed := _smoothed(target, accuracy, draft, best):
                found[Role.SMOOTHED if guarded.placement else Role.RESULT] = smoothed
    tried_db = {way.value: each.quality.worst_db for way, each in scaled.items()}
    return [
        _Final(role, each, _report(target, each, accuracy.kernels, tried_db))
        for role, each in found.items()
    ]


def _report(
    target: _Target,
    guarded: FallbackResult,
    kernels: Kernels | None,
    tried_db: Mapping[str, float],
) -> QuantizeReport:
    """Describe what came of the rules and of the accuracy."""
    config, quality, reason = target.request.config, guarded.quality, ""
    if not guarded.placement:
        least_db = config.min_sqnr_db or 0.0
        reason = f"it would be farther from float than {least_db:g} dB"
        if quality.why_unknown:
            reason = quality.shortfall(least_db)
    report = target.report(guarded.draft, reason, guarded.placement)
    edges, inserter = guarded.placement.edges, guarded.scaled.inserter
    smoothed, source = inserter.smoothed(guarded.placement), inserter.encoder.ranges.source
    return replace(
        report,
        decisions=tuple(
            replace(each, sqnr_db=own.sqnr_db) if (own := guarded.own.get(each.node)) else each
            for each in report.decisions
        ),
        added={edge.tensor: rule for edge, rule in guarded.draft.extra.items() if edge in edges},
        calibration=(target.provider.source if smoothed else source).value,
        method=guarded.scaled.label,
        tried_db=tried_db,
        corrected_biases=len(inserter.corrected(guarded.placement)),
        smoothed_inputs=len(smoothed),
        sqnr_db=quality.against_float,
        scores_db=quality.scores,
        judged_with=registry.title(kernels.engine) if kernels is not None else _AS_WRITTEN,
        float_type=kernels.float_type if kernels is not None else "",
        float_sqnr_db=quality.of_float.worst_db if quality.of_float is not None else None,
    )


def _with_better_biases(
    target: _Target, accuracy: AccuracyEvaluator, draft: Draft, scaled: Scaled
) -> Scaled:
    """Return a draft with corrected biases, if they are wanted and bring the outputs nearer."""
    config, provider = target.request.config, target.provider
    is_wanted = config.bias_correction != NONE and provider.is_data
    if not is_wanted or not is_worth_trying(scaled.quality.worst_db, config.min_sqnr_db):
        return scaled
    with target.steps.step("correct", "accuracy", "correcting biases"):
        placement, samples = draft.placement(), provider.unevaluated_samples()
        inserters = with_corrected_biases(scaled.inserter, placement, target.worker, samples)
        return _nearest(accuracy, placement, scaled, inserters, scaled.quality.worst_db) or scaled


def _nearest(
    accuracy: AccuracyEvaluator,
    placement: Placement,
    before: Scaled,
    inserters: Iterable[Inserter],
    least_db: float,
) -> Scaled | None:
    """Return what writes a draft nearest to float, and nearer than that; None if nothing does."""
    best = None
    for inserter in inserters:
        quality = accuracy.quality(inserter.write(placement, "changed"))
        if quality.worst_db > least_db:
            best, least_db = replace(before, inserter=inserter, quality=quality), quality.worst_db
    return best


def _smoothed(
    target: _Target, accuracy: AccuracyEvaluator, draft: Draft, best: Scaled
) -> FallbackResult | None:
    """Return the whole draft with smoothed inputs, if that helps and is near enough.

    Smoothing takes time at run time, so nothing is smoothed unless that is measured.

    Args:
        target: The model.
        accuracy: Compares outputs.
        draft: The draft.
        best: It with the best ranges.
    """
    config, provider, least_db = target.request.config, target.provider, best.quality.worst_db
    is_wanted = config.smoothing != NONE and provider.is_data and not target.why_not_timed
    if not is_wanted or not is_worth_trying(least_db, config.min_sqnr_db):
        return None
    with target.steps.step("smooth", "accuracy", "smoothing inputs of products"):
        placement, samples = draft.placement(), provider.unevaluated_samples()
        inserters = with_smoothed_inputs(best.inserter, placement, target.worker, samples)
        least_db = max(least_db + LEAST_GAIN_DB, 0.0)
        found = _nearest(accuracy, placement, best, inserters, least_db)
    if found is None or (config.min_sqnr_db and found.quality.shortfall(config.min_sqnr_db)):
        return None
    return FallbackResult(draft, placement, found, found.quality)


def _time(target: _Target, finals: Sequence[_Final]) -> _Final:
    """Time what may be handed over against the model as given; what is not faster is not."""
    request, steps, first = target.request, target.steps, finals[0]
    threshold = request.config.performance_threshold
    if threshold is None or target.why_not_timed:
        return replace(first, report=replace(first.report, not_timed=target.why_not_timed))

    def told(done: int) -> None:
        if done:
            steps.reporter.tell("final", f"opening the files again, in process {done + 1}")

    with (
        steps.step("time", "final", "timing the result against the model as given"),
        Worker(request.engine, request.options) as worker,
    ):
        feeds = next(iter(target.provider.evaluation_samples()))
        entries = {each.role: each.as_finalist() for each in finals}
        files = [entry.file for entry in entries.values()]
        timed = time_final(
            WorkerPool([worker]), target.source.path, files, feeds, Allowance(TIMING_S), told
        )
    last = FinalRound(list(entries.values()), dict(zip(files, timed, strict=True)))
    chosen, reason = last.choose(Objective(threshold), lambda _: "")
    final = next((each for each in finals if chosen and each.role is chosen.role), first)
    found = last.time_of(entries[final.role])
    report = replace(final.report, kept_float=chosen is None, reason=reason)
    if found is not None:
        report = replace(
            report, baseline_ms=found.baseline_ms, final_ms=found.final_ms,
            comparison=found.comparison, not_timed="",
        )  # fmt: skip
    return replace(final, report=report)
