"""Progress events, times of subgraphs, summary and result of a tuning run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from qdqtune.records._accuracy import Rejected, allowed_sqnr_db, is_near_limit
from qdqtune.records._errors import UsageError
from qdqtune.records._front import FrontPoint
from qdqtune.records._json_form import UNBOUNDED, Record
from qdqtune.records._measurement import MOST_MS, EngineInfo
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RANDOM_WARNING, CalibrationSource
from qdqtune.records._results import Candidate, Result
from qdqtune.records._untrusted_files import LARGEST, SCHEMAS, number_in, versioned

_OF_SUBGRAPHS = {"groups", "structural", "units"}

AS_GIVEN = "as given"
"""The float type of a model that was not converted."""

FINISHED = "finished"
BY_BUDGET = "budget"
BY_COUNT = "max_benchmarks"
INTERRUPTED = "interrupted"
ENGINE_FAILED = "engine failed"
"""Why a search ended, as in `Summary.stopped`."""


@dataclass(frozen=True)
class TuneEvent:
    """A progress event of a command: a step, or how far a step is if `done` is a number.

    Attributes:
        stage: The current stage: ``calibration``, ``noise``, ``seeds``, ``cuts``, ...
        message: What happened or begins, in one line, with its amount if it has one.
        benchmarks: Candidates built and timed so far.
        known: Candidates whose timing came from earlier runs.
        planned: Estimated total number of candidates; None while unknown.
        speedup: Estimated speedup of the best candidate so far over the float model.
        seconds: Seconds since the run began.
        eta_s: Estimated seconds left: of the step if `done` is a number, otherwise of the run;
            None while unknown.
        done: Amount done of a step that goes on, such as samples; None for a step.
        total: The whole amount; None if unknown.
        budget_left_s: Seconds left of the run's budget; None without a budget.
        workers: What each worker does now, if several do something.
    """

    stage: str
    message: str
    benchmarks: int = 0
    planned: int | None = None
    speedup: float = 1.0
    seconds: float = 0.0
    eta_s: float | None = None
    known: int = 0
    done: int | None = None
    total: int | None = None
    budget_left_s: float | None = None
    workers: tuple[str, ...] = ()


# Loaded by name when it is needed: workflows depend on records, never the reverse.
_EXPORT = "qdqtune.workflows._export"

QUIETER = (
    "Stop other work, keep cores free for the run (taskset), use fewer --threads, or a preset with "
    "longer comparisons (--preset extensive)."
)
"""Advice on reducing noise."""
_LOUD = 0.1
_DEAFENING = 1.0


@dataclass(frozen=True)
class Noise(Record):
    """Result of comparing the model with itself.

    Attributes:
        ratio: Latency ratio of two opens of the model; differs from 1 only by noise.
        detectable: The smallest relative difference that a screening comparison can detect.
    """

    ratio: float
    detectable: float

    @property
    def hides_everything(self) -> bool:
        """Whether even a model twice as fast could not be distinguished from the original."""
        return self.detectable > _DEAFENING

    @property
    def text(self) -> str:
        """The detectable difference, with advice if the noise is high."""
        seen = f"a screening sees differences from {100 * self.detectable:.1f} % on"
        return f"{seen}: the machine is busy. {QUIETER}" if self.detectable > _LOUD else seen


@dataclass(frozen=True)
class Seconds(Record):
    """Where a run's time was spent.

    Attributes:
        total: From start to end.
        building: Opening models, inside the engine's process.
        timing: Timed runs, inside the engine's process.
        own: Time not spent waiting for an engine.
    """

    total: float
    building: float
    timing: float
    own: float

    @property
    def other(self) -> float:
        """Waiting for an engine's other work: starting, ranges, errors of outputs, layers."""
        return max(0.0, self.total - self.building - self.timing - self.own)


DATA_FLAG = "--calibration_data"
_DATA_FLAGS = re.compile(rf"{DATA_FLAG}|--calibration_samples|--image_[a-z_]+")


def data_flags_in(error_inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags that name and prepare the data of a run: text to show, never to obey.

    Args:
        error_inputs: Those of a `Summary`, which may come from an untrusted file.

    Returns:
        The flags with their values; without a path, as for data from Python, `SOURCE` stands for
        the data.
    """
    recorded = error_inputs.get("flags")
    known = {
        flag: value
        for flag, value in (recorded.items() if isinstance(recorded, Mapping) else ())
        if _DATA_FLAGS.fullmatch(flag) and isinstance(value, str)
    }
    return {DATA_FLAG: "SOURCE", **known}


@dataclass(frozen=True)
class Blanket(Record):
    """The best placement that applies one rule to the whole model, such as all weighted ops.

    It is timed at the end, interleaved with the baseline and the result.

    Attributes:
        name: The rule.
        latency_ms: Its latency.
        speedup: Over the baseline.
        speedup_interval: Its interval.
        sqnr_db: SQNR of the worst output against the float model, in dB; None if unknown.
        metric: The user's metric; None if not requested, or if it would have taken too long.
        identical: Whether it is the written model; then its figures are those of the result.
        shortfall: The accuracy limit it misses; empty if it misses none.
    """

    name: str
    latency_ms: float
    speedup: float
    speedup_interval: tuple[float, float] = field(metadata=UNBOUNDED)
    sqnr_db: float | None = None
    metric: float | None = None
    identical: bool = False
    shortfall: str = ""


@dataclass(frozen=True)
class WorkerFigures(Record):
    """One of several workers of a run.

    Attributes:
        name: Its number, and where it ran.
        jobs: How many trials and subgraphs it has timed.
        left_out: Why it was not used to the end; empty if it was.
    """

    name: str
    jobs: int
    left_out: str = ""


@dataclass(frozen=True)
class Summary(Record):
    """The figures of a run: `summary.json`, for scripts to read.

    Attributes:
        model: The file that was tuned.
        mode: ``region`` or ``subgraph``.
        engine: The engine that measured.
        dialect: The dialect of the Q/DQ nodes.
        quant_type: The quantized type.
        calibration: ``data``, ``random`` or ``given``; ``none`` if nothing depends on ranges.
        calibrated_on: Description of the calibration samples.
        calibration_method: The range method.
        seed: Seed of the search and of random inputs.
        preset: The preset that set how thorough the run was.
        stopped: Why the search ended: ``finished``, ``budget``, ``max_benchmarks``,
            ``interrupted``, ``engine failed``.
        baseline_ms: Latency of the original model, in the final comparison.
        final_ms: Latency of the written model, in the same comparison.
        speedup: Baseline over final, from that interleaved comparison; 1 if float was kept.
        speedup_interval: Its confidence interval.
        confidence: Level of the interval.
        kept_float: Whether the original model was returned unchanged.
        reason: Why; empty otherwise.
        output_sqnr_db: SQNR of the worst output against the float32 model, in dB; None if
            unknown.
        metric: The user's metric for the written and the float model, if there is one.
        lost_to_accuracy: The limit that the fastest model failed, by how much, and what was left
            float because of it; empty if it failed none.
        noise: Result of the noise check at the start.
        benchmarks: Candidates built and timed.
        memo_hits: Comparisons whose outcome was known from an earlier run.
        failed: Candidates that the engine refused.
        regions: Number of regions.
        patterns: Number of distinct regions, including shapes.
        groups: Number of choices in the search.
        qdq_pairs: Number of tensors quantized in the written model.
        seconds: Where the time was spent.
        files: The written files: name to path within the output folder.
        seeds: Whole-model placements that the search started from, by name, with the speedup of
            each over the float model as measured in the search.
        runs: Number of runs in this folder, including this one; budgets apply to each run.
        total_benchmarks: Candidates built and timed in all of these runs.
        total_seconds: Duration of all of these runs; a killed run counts up to its last
            measurement.
        final_sha256: Hash of the written model, so that it can be recognized.
        conditions: Conditions the result had to satisfy; results are comparable only if these are
            equal.
        subgraph_benchmarks: Forms of subgraphs that were built and timed, in subgraph mode.
        subgraph_failed: Those of them that the engine refused.
        subgraphs: In subgraph mode: the number of fusion ``groups``, those that no engine layer
            reported (``structural``), distinct subgraphs (``all_pieces``), those of them that were
            profiled (``pieces``), and groups of these that could be quantized (``units``).
        batches: In subgraph mode: the batches tried on the whole model, with predictions.
        precision: The float type that the model was converted to before tuning, such as
            ``float16``, which the baseline and the result then have; or ``as given``.
        precision_sqnr_db: SQNR of the converted model's worst output against the original model,
            in dB; None if unknown, or not converted.
        precision_speedup: Speedup of the converted over the original model; None if unknown.
        precision_reason: Why it was not converted to the requested float type; empty if it was, or
            if none was requested.
        build_with: The command that builds the written model as it was measured; empty where no
            build is needed.
        shapes: Input shapes at which the model was measured; empty in old summaries.
        version: Version of qdqtune; empty in old summaries, as are the next two.
        command: The command line, or the Python function that was called.
        date: When the summary was written: ISO 8601, UTC.
        bytes_before: Size of the original model, with its weights; 0 in old summaries.
        bytes_after: Size of the written model.
        calibration_samples: Number of calibration samples; 0 if none were needed.
        blanket: The best whole-model placement without a search, timed with the result; None if
            none was timed at the end.
        rejected: Candidates that were fast but not accurate enough.
        result_run: Number of the run in this folder that found the result: lower than `runs` if
            later runs found nothing better; 0 in old summaries.
        float_sqnr_db: SQNR of the float model itself against float32, as the engine computes it,
            for its worst output; None if it is computed in float32, or if unknown.
        converted_from: The half-precision type of the original model, if it was tuned in float32
            because the dialect has no integer kernels for that type; inputs and outputs keep it.
        contention: Share of the final comparison that the engine waited for a core, if
            significant; see `Comparison`.
        baseline_sha256: Hash of `baseline.onnx` and its weights; empty in old summaries.
        error_inputs: The inputs `output_sqnr_db` was measured on: the ``source`` (``data`` or
            ``random``), a ``digest`` of the samples, the ``ranges`` of random ones, the ``flags``
            that name and prepare data, and the number of ``samples``, which older summaries lack;
            empty in still older ones, and if nothing was measured.
        openings: Number of fresh processes that opened the files in the final comparison. With
            fewer than three, the variation between openings is unknown and the interval is wide.
            0 if there was no comparison, and in old summaries.
        dynamic_ops: Number of ops in the written model whose input is quantized at run time.
        unfused_ops: Number of float ops in it that the engine is kept from fusing.
        front: The models of the final comparison of which none is both faster and more accurate
            than another, fastest first; see `pareto.json`.
        corrected_biases: Number of biases in the written model that mean errors were taken off.
        smoothed_inputs: Number of products in it whose input is smoothed.
        workers: The workers, if there were several.
    """

    KIND: ClassVar[str] = "summary"
    SCHEMA: ClassVar[int] = SCHEMAS["summary"]

    model: str
    engine: EngineInfo
    dialect: str
    quant_type: str
    calibration: str
    calibrated_on: str
    calibration_method: str
    seed: int
    preset: str
    stopped: str
    baseline_ms: float
    final_ms: float
    speedup: float
    speedup_interval: tuple[float, float] = field(metadata=UNBOUNDED)
    confidence: float
    kept_float: bool
    reason: str
    output_sqnr_db: float | None
    metric: Mapping[str, float] | None
    noise: Noise
    benchmarks: int
    memo_hits: int
    failed: int
    regions: int
    patterns: int
    groups: int
    qdq_pairs: int
    seconds: Seconds
    files: Mapping[str, str] = field(default_factory=dict)
    seeds: Mapping[str, float] = field(default_factory=dict)
    lost_to_accuracy: str = ""
    mode: str = "region"
    runs: int = 1
    total_benchmarks: int = 0
    total_seconds: float = 0.0
    final_sha256: str = ""
    conditions: Mapping[str, Any] = field(default_factory=dict)
    subgraph_benchmarks: int = 0
    subgraph_failed: int = 0
    subgraphs: Mapping[str, int] = field(default_factory=dict)
    batches: tuple[Batch, ...] = ()
    precision: str = AS_GIVEN
    precision_sqnr_db: float | None = None
    precision_speedup: float | None = None
    precision_reason: str = ""
    build_with: str = ""
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    version: str = ""
    command: str = ""
    date: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    calibration_samples: int = 0
    result_run: int = 0
    float_sqnr_db: float | None = None
    blanket: Blanket | None = None
    rejected: tuple[Rejected, ...] = ()
    converted_from: str = ""
    contention: float = 0.0
    baseline_sha256: str = ""
    error_inputs: Mapping[str, Any] = field(default_factory=dict)
    openings: int = 0
    dynamic_ops: int = 0
    unfused_ops: int = 0
    front: tuple[FrontPoint, ...] = ()
    corrected_biases: int = 0
    smoothed_inputs: int = 0
    workers: tuple[WorkerFigures, ...] = ()

    @property
    def contents(self) -> str:
        """What is quantized in the written model, in words."""
        counts = (
            (self.qdq_pairs, f"tensor{{}} {{}} quantized ({self.quant_type})"),
            (self.dynamic_ops, "op{} {} quantized at run time (dynamic)"),
            (self.unfused_ops, "sum{} {} kept from being fused"),
        )
        parts = [
            f"{count} {text.format(*(('', 'is') if count == 1 else ('s', 'are')))}"
            for count, text in counts
            if count
        ]
        return ", ".join(parts) or "Nothing is quantized"

    @property
    def min_sqnr_db(self) -> float | None:
        """The required SQNR of every output; None if there is no limit."""
        return self.conditions.get("min_sqnr_db")

    @property
    def max_latency_ms(self) -> float | None:
        """The requested maximum latency; None if there is no limit."""
        return self.conditions.get("max_latency_ms")

    @property
    def misses_max_latency(self) -> bool:
        """Whether the written model takes longer than requested; then nothing faster was found."""
        return self.max_latency_ms is not None and self.final_ms > self.max_latency_ms

    @property
    def latency_warning(self) -> str:
        """The warning that the requested latency was not reached; empty if it was."""
        if not self.misses_max_latency:
            return ""
        which = "the model as given, which is kept," if self.kept_float else "the fastest"
        return (
            f"No model reaches --max_latency {self.max_latency_ms:g} ms: {which} takes "
            f"{self.final_ms:.3g} ms."
        )

    @property
    def data_flags(self) -> dict[str, str]:
        """The flags that name the data of the run, and their values; see `data_flags_in`."""
        source = self.error_inputs.get("source") or self.calibration
        on_data = source == CalibrationSource.DATA.value
        return data_flags_in(self.error_inputs) if on_data and not self.kept_float else {}

    @property
    def allowed_sqnr_db(self) -> float | None:
        """The SQNR limit, relaxed by the error of the float model itself."""
        if self.min_sqnr_db is None:
            return None
        return allowed_sqnr_db(self.min_sqnr_db, self.float_sqnr_db)

    def shortfall(self, sqnr_db: float | None) -> str:
        """Return the SQNR limit that a model with this SQNR misses; empty if it misses none."""
        limit_db = self.allowed_sqnr_db
        if sqnr_db is None or limit_db is None or sqnr_db >= limit_db:
            return ""
        return f"not accurate enough: below {round(limit_db, 1):g} dB"

    @property
    def near_min_sqnr(self) -> bool:
        """Whether the written model meets the SQNR limit by less than 1 dB."""
        return not self.kept_float and is_near_limit(self.output_sqnr_db, self.allowed_sqnr_db)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        marks = {
            "near_min_sqnr": self.near_min_sqnr,
            "misses_max_latency": self.misses_max_latency,
        }
        return {**super().to_dict(), **marks}

    @classmethod
    def from_dict(cls, value: object, name: str = "The summary") -> Summary:
        """Read the JSON form, as written by this or an earlier version.

        Fields that are not known are left out: later versions may add some.

        Args:
            value: The JSON form.
            name: Its name in messages.

        Raises:
            NewerSchemaError: If a newer version wrote it.
            KeyError: If a field is missing.
            TypeError: If a part of it has an unknown field.
            ValueError: If a field has an invalid value.
        """
        body = versioned(value, cls.KIND, name)
        return super().from_dict(
            {key: body[key] for key in cls.__dataclass_fields__ if key in body}
        )

    def check(self) -> None:
        """See `Record.check`."""
        if self.min_sqnr_db is not None:
            number_in(self.min_sqnr_db, "the least SQNR", 0.0, 1e9)
        if self.max_latency_ms is not None:
            number_in(self.max_latency_ms, "the maximum latency", 0.0, LARGEST)
        if self.subgraphs and not self.subgraphs.keys() >= _OF_SUBGRAPHS:
            raise ValueError("some counts of subgraph mode are missing")


@dataclass(frozen=True, repr=False)
class TuneResult(Result):
    """The result of a tuning run.

    Attributes:
        model: The model to use: the fastest accurate one that was found, or the original.
        output_dir: The run's folder.
        placement: Its placement.
        summary: The figures of the run.
        report: The page that shows the run; None if it was not written.
    """

    model: Path
    output_dir: Path
    placement: Placement
    summary: Summary
    report: Path | None = None

    @property
    def speedup(self) -> float:
        """Speedup over the original model."""
        return self.summary.speedup

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        summary = self.summary
        low, high = summary.speedup_interval
        found = f"{summary.speedup:.3f}x ({low:.3f} to {high:.3f}) on {summary.engine.name}"
        if summary.kept_float:
            found = f"kept as given on {summary.engine.name}: {summary.reason}"
        else:
            found += f", {summary.contents}"
        return f"{found}, model {self.model}"

    @property
    def warning(self) -> str:
        """The warning that the scales can't be trusted; empty if they can, or if there are none."""
        is_random = self.summary.calibration == CalibrationSource.RANDOM.value
        return RANDOM_WARNING if is_random and not self.summary.kept_float else ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: that of the summary."""
        return self.summary.to_dict()

    def to_dataframe(self) -> Any:
        """Return the run's candidates as a pandas DataFrame: a row each, in the order of trials.

        The columns are the attributes of `Candidate`; the index is its `id`.

        Raises:
            UsageError: If pandas is not installed, or the run's folder is gone.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise UsageError(
                "to_dataframe() requires pandas, which is not installed.",
                "Install it (pip install pandas), or use list_candidates(result.output_dir).",
            ) from None
        candidates = importlib.import_module(_EXPORT).list_candidates(self.output_dir)
        columns = [each.name for each in fields(Candidate)]
        return pandas.DataFrame([vars(each) for each in candidates], columns=columns).set_index(
            "id"
        )


@dataclass(frozen=True)
class TimeEstimate:
    """How long a run may take, from one timing of the model as given.

    Attributes:
        least_s: Seconds if the search ends after its first candidates.
        most_s: Seconds if it tries as many as it may, within the budget.
        build_s: Seconds that the engine took to build the model.
        latency_ms: Latency of the model.
    """

    least_s: float
    most_s: float
    build_s: float
    latency_ms: float


@dataclass(frozen=True, repr=False)
class TunePlan(Result):
    """What a run would do: the result of a dry run.

    Attributes:
        model: The file.
        engine: The engine that would measure.
        dialect: The dialect of the Q/DQ nodes.
        quant_type: The quantized type.
        nodes: Number of ops after folding.
        regions: Number of regions.
        patterns: Number of distinct regions, including shapes.
        groups: Number of choices in the search.
        quantizable: Number of quantizable ops.
        left_float: Reason to the number of ops that can't be quantized.
        seeds: Whole-model placements to start from, with the number of tensors each quantizes.
        benchmarks: Maximum number of candidates.
        mode: ``region`` or ``subgraph``.
        is_told_in_place: Whether whole models tell what subgraphs take, since builds take long.
        converted_from: The half-precision type of the model, if it would be tuned in float32.
        estimate: How long it may take; None if the model could not be timed.
        no_estimate: Why it could not be timed; empty if it was.
    """

    KIND: ClassVar[str] = "plan"

    model: str
    engine: str
    dialect: str
    quant_type: str
    nodes: int
    regions: int
    patterns: int
    groups: int
    quantizable: int
    left_float: Mapping[str, int]
    seeds: Mapping[str, int]
    benchmarks: int
    mode: str = "region"
    is_told_in_place: bool = False
    converted_from: str = ""
    estimate: TimeEstimate | None = None
    no_estimate: str = ""

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return (
            f"{self.model} on {self.engine}: {self.quantizable} of {self.nodes} ops quantizable, "
            f"{self.groups} groups, at most {self.benchmarks} benchmarks"
        )


BY_LAYERS = "layers"
"""The engine reported where the time of the subgraph goes."""
BY_TOTAL = "total"
"""It did not, so conversion costs were measured separately and subtracted."""
IN_PLACE = "whole models"
"""It was not timed alone: the layers of whole models told its times."""


@dataclass(frozen=True)
class SchemeTimes(Record):
    """Times of a subgraph with one quantization scheme, or in float.

    Attributes:
        scheme: Name of the scheme.
        total_ms: Latency of the subgraph alone, timed interleaved with its other forms.
        inside_ms: Its compute time, without conversions and layout changes at its borders.
        conversion_ms: Cost of Q and DQ at each input, then at each output.
        layout_ms: Cost of layout changes at each input, then at each output.
        error: Why there are no times; None if there are.
    """

    scheme: str
    total_ms: float = 0.0
    inside_ms: float = 0.0
    conversion_ms: tuple[float, ...] = ()
    layout_ms: tuple[float, ...] = ()
    error: str | None = None

    def check(self) -> None:
        """See `Record.check`."""
        for ms in (self.total_ms, self.inside_ms, *self.conversion_ms, *self.layout_ms):
            checked_ms(ms)
        if len(self.conversion_ms) != len(self.layout_ms):
            raise ValueError("borders are missing")


@dataclass(frozen=True)
class SubgraphTimes(Record):
    """All forms of a subgraph.

    Attributes:
        key: Identifies the subgraph.
        how: Where its times are from: `BY_LAYERS`, `BY_TOTAL` or `IN_PLACE`.
        forms: The float form first, then those that were tried.
        file: Name of the float form's file.
    """

    key: str
    how: str
    forms: tuple[SchemeTimes, ...]
    file: str = ""

    def form(self, scheme: str) -> SchemeTimes | None:
        """Return one of the forms, if it could be timed."""
        return next((f for f in self.forms if f.scheme == scheme and f.error is None), None)

    def check(self) -> None:
        """See `Record.check`."""
        timed = [form for form in self.forms if form.error is None]
        if len({len(form.conversion_ms) for form in timed}) > 1:
            raise ValueError("the forms of a subgraph have different borders")


@dataclass(frozen=True)
class Batch(Record):
    """Groups that were quantized or returned to float together, with the measured effect.

    Attributes:
        stage: The stage of the validation.
        quantized: Number of groups quantized.
        dropped: Number of groups returned to float.
        predicted: Speedup predicted from subgraph costs, over the model it was compared with; None
            if the costs were taken from its own layers.
        measured: Speedup on the whole model; None if the engine refused it.
        error: Standard error of the log of the measured speedup.
        accepted: Whether it was kept.
    """

    stage: str
    quantized: int
    dropped: int
    predicted: float | None
    measured: float | None
    error: float
    accepted: bool

    def check(self) -> None:
        """See `Record.check`."""
        if any(
            speedup is not None and speedup <= 0.0 for speedup in (self.predicted, self.measured)
        ):
            raise ValueError("a speedup is not a number")


def checked_ms(value: object) -> float:
    """Return a time of a subgraph in milliseconds.

    Raises:
        ValueError: If it is not a plausible time.
    """
    return number_in(value, "a time", 0.0, MOST_MS)
