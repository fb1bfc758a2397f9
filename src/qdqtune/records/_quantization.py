"""Decisions and results of one-shot quantization, and reports of inserting and removing Q/DQ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from qdqtune.records._accuracy import allowed_sqnr_db, is_near_limit
from qdqtune.records._measurement import Comparison
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RANDOM_WARNING, CalibrationSource, RangeMethod
from qdqtune.records._results import Result


@dataclass(frozen=True, repr=False)
class InsertReport(Result):
    """Report of an insertion of Q/DQ.

    Attributes:
        output: The file written; None if there is none.
        dialect: Name of the dialect.
        quant_type: Quant type.
        quantized: Names of the selected nodes that were quantized.
        left_float: Name to reason for selected nodes that could not be quantized.
        placement: The inserted placement.
        pairs: Number of tensors that got a Q/DQ pair.
        calibration: Source of the ranges.
        calibrated_on: Description of the samples.
        method: The range method.
        tried_db: SQNR of the worst output for every method that was tried.
        scales_kept: Number of activations that keep a scale of the original model.
        ranges_kept: Number that keep only its range, because the dialect can't express the scale.
        sqnr_db: Signal-to-noise ratio per output against the float model; empty if unknown.
        sqnr_given_db: The same against the original Q/DQ model; empty if it was a float model.
        model: The quantized model, in the form in which the model was given.
    """

    KIND: ClassVar[str] = "insertion"
    JSON: ClassVar[str] = (
        "output dialect quant_type calibration calibration_method=method tried_sqnr_db=tried_db "
        "quantized left_float qdq_pairs=pairs dynamic=placement.dynamic "
        "unfused=placement.unfused scales_kept ranges_kept output_sqnr_db=sqnr_db "
        "output_sqnr_given_db=sqnr_given_db"
    )

    output: Path | None
    dialect: str
    quant_type: str
    quantized: tuple[str, ...]
    left_float: dict[str, str]
    placement: Placement
    pairs: int
    calibration: CalibrationSource
    calibrated_on: str
    method: RangeMethod
    tried_db: dict[str, float]
    scales_kept: int
    ranges_kept: int
    sqnr_db: dict[str, float]
    sqnr_given_db: dict[str, float]
    model: Any = field(default=None, compare=False)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        worst = min(self.sqnr_db.values(), default=None)
        dynamic = f", {len(self.placement.dynamic)} dynamic" if self.placement.dynamic else ""
        parts = [
            f"{len(self.quantized)} ops{dynamic}, {self.pairs} tensors {self.quant_type} in "
            f"{self.dialect}",
            *([f"SQNR {worst:.1f} dB"] if worst is not None else []),
            *([f"output {self.output}"] if self.output is not None else []),
        ]
        return ", ".join(parts)

    @property
    def warning(self) -> str:
        """The warning that the scales can't be trusted; empty if they can."""
        return RANDOM_WARNING if self.calibration is CalibrationSource.RANDOM else ""


@dataclass(frozen=True, repr=False)
class StripReport(Result):
    """Report of removing Q/DQ from a model.

    Attributes:
        output: The file written; None if there is none.
        placement: The placement that was removed.
        pairs: Number of DequantizeLinear nodes removed.
        left: Number of Q and DQ nodes that stayed because they are not part of a pair.
        rounded: Number of weights with rounded values, because the file held no others.
        corrected_biases: Number of biases that mean errors of quantized ops are still taken off.
        smoothed_inputs: Number of products with a smoothed input, which was undone.
        sqnr_db: Signal-to-noise ratio per output of the original file against the written one;
            empty if unknown.
        model: The float model, in the form in which the model was given.
    """

    KIND: ClassVar[str] = "stripping"
    JSON: ClassVar[str] = (
        "output qdq_pairs=pairs tensors=placement.tensors dynamic=placement.dynamic "
        "unfused=placement.unfused left rounded_weights=rounded corrected_biases "
        "smoothed_inputs "
        "output_sqnr_db=sqnr_db"
    )

    output: Path | None
    placement: Placement
    pairs: int
    left: int
    rounded: int
    corrected_biases: int = 0
    smoothed_inputs: int = 0
    sqnr_db: dict[str, float] = field(default_factory=dict)
    model: Any = field(default=None, compare=False)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return self.taken if self.output is None else f"{self.taken}, output {self.output}"

    @property
    def taken(self) -> str:
        """What was removed, in words."""
        parts = [f"took {self.pairs} DequantizeLinear off {len(self.placement.tensors)} tensors"]
        if self.placement.dynamic:
            parts.append(f"made {len(self.placement.dynamic)} dynamic ops float")
        if self.placement.unfused:
            parts.append(f"made Adds of {len(self.placement.unfused)} Sums")
        return ", ".join(parts)


@dataclass(frozen=True)
class Decision:
    """Whether an op is quantized, and why.

    Attributes:
        node: Name of the op's node.
        op_type: Its op type.
        quantized: Whether it runs as an integer kernel.
        rule: What decided: a rule's name, ``no kernel``, ``asked`` or ``accuracy``.
        reason: The reason, as text.
        sqnr_db: The error that its own quantization adds, if it was measured.
        dynamic: Whether its input is quantized at run time.
    """

    node: str
    op_type: str
    quantized: bool
    rule: str
    reason: str
    sqnr_db: float | None = None
    dynamic: bool = False


@dataclass(frozen=True, repr=False, kw_only=True)
class QuantizeReport(Result):
    """Report of quantizing a model.

    Attributes:
        output: The file written; None if there is none.
        engine: The engine whose rules and dialect were used.
        dialect: The dialect of the Q/DQ nodes.
        quant_type: The quantized type.
        decisions: One per op, in graph order; those of the attempt, if the model stays float.
        placement: The inserted placement; empty if the model stays float.
        added: Pairs that no kernel requires: tensor to rule.
        calibration: ``data``, ``random`` or ``given``.
        calibrated_on: Description of the samples.
        method: The range method.
        tried_db: SQNR of the worst output for every method that was tried.
        corrected_biases: Number of biases that mean errors were taken off.
        smoothed_inputs: Number of products whose input is smoothed.
        sqnr_db: Signal-to-noise ratio per output against the float model; empty if unknown.
        scores_db: The same for the inputs of a final Softmax or ArgMax, by output.
        judged_with: The engine whose kernels computed these ratios.
        bytes_before: Size of the original model, including weights.
        bytes_after: Size of the written model.
        baseline_ms: Latency of the original model; None if it was not timed.
        final_ms: Latency of the quantized model.
        comparison: The comparison of the two.
        not_timed: Why there is no latency; empty if there is one.
        kept_float: Whether the original model was returned unchanged.
        reason: Why, in that case.
        seconds: Wall time by step.
        min_sqnr_db: The required SQNR of every output; None if there is no limit.
        float_type: The type in which those kernels compute float32; empty if unknown.
        float_sqnr_db: SQNR of the float model itself against float32 on that engine, for its worst
            output; None if it is computed in float32, or if unknown.
        converted_from: The half-precision type of the original model, if it is computed in float32
            because the dialect has no integer kernels for that type; inputs and outputs keep it.
    """

    KIND: ClassVar[str] = "quantize"
    JSON: ClassVar[str] = (
        "output engine dialect quant_type calibration calibrated_on method tried_db "
        "corrected_biases smoothed_inputs sqnr_db scores_db min_sqnr_db near_min_sqnr "
        "judged_with float_type float_sqnr_db converted_from qdq_pairs dynamic_ops unfused_ops "
        "bytes_before bytes_after baseline_ms final_ms speedup speedup_interval not_timed "
        "kept_float reason added nodes=decisions seconds"
    )

    output: Path | None = None
    engine: str
    dialect: str
    quant_type: str
    decisions: tuple[Decision, ...]
    placement: Placement
    added: Mapping[str, str] = field(default_factory=dict)
    calibration: str
    calibrated_on: str
    method: str = ""
    tried_db: Mapping[str, float] = field(default_factory=dict)
    corrected_biases: int = 0
    smoothed_inputs: int = 0
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    scores_db: Mapping[str, float] = field(default_factory=dict)
    judged_with: str = ""
    bytes_before: int = 0
    bytes_after: int = 0
    baseline_ms: float | None = None
    final_ms: float | None = None
    comparison: Comparison | None = None
    not_timed: str = ""
    kept_float: bool = False
    reason: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    min_sqnr_db: float | None = None
    float_type: str = ""
    float_sqnr_db: float | None = None
    converted_from: str = ""

    @property
    def speedup(self) -> float | None:
        """Speedup of the returned model over the original; None if it was not measured."""
        if self.comparison is None:
            return None
        return 1.0 if self.kept_float else self.comparison.ratio

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """Interval of the quantized model's speedup; None if it was not measured."""
        return None if self.comparison is None else (self.comparison.low, self.comparison.high)

    @property
    def qdq_pairs(self) -> int:
        """Number of tensors that are quantized."""
        return len(self.placement.tensors)

    @property
    def dynamic_ops(self) -> int:
        """Number of ops whose input is quantized at run time."""
        return 0 if self.kept_float else sum(each.dynamic for each in self.decisions)

    @property
    def unfused_ops(self) -> int:
        """Number of ops that are kept from being fused."""
        return len(self.placement.unfused)

    @property
    def worst_db(self) -> float | None:
        """SQNR of the worst output, or of its scores."""
        return min({**self.sqnr_db, **self.scores_db}.values(), default=None)

    @property
    def allowed_sqnr_db(self) -> float | None:
        """The SQNR limit, relaxed by the error of the float model itself."""
        if self.min_sqnr_db is None:
            return None
        return allowed_sqnr_db(self.min_sqnr_db, self.float_sqnr_db)

    @property
    def near_min_sqnr(self) -> bool:
        """Whether the returned model meets the SQNR limit by less than 1 dB."""
        return not self.kept_float and is_near_limit(self.worst_db, self.allowed_sqnr_db)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        if self.kept_float:
            return f"kept as given: {self.reason}"
        parts = [f"{len(self.placement.tensors)} tensors {self.quant_type} in {self.dialect}"]
        parts += [f"{self.dynamic_ops} dynamic ops"] if self.dynamic_ops else []
        if self.speedup is not None:
            parts.append(f"{self.speedup:.3f}x on {self.engine}")
        if self.worst_db is not None:
            parts.append(f"SQNR {self.worst_db:.1f} dB")
        if self.output is not None:
            parts.append(f"output {self.output}")
        return ", ".join(parts)

    @property
    def warning(self) -> str:
        """The warning that the scales can't be trusted; empty if they can, or if there are none."""
        is_random = self.calibration == CalibrationSource.RANDOM.value
        return RANDOM_WARNING if is_random and not self.kept_float else ""


@dataclass(frozen=True, repr=False)
class QuantizeResult(Result):
    """A quantized model with its report.

    Attributes:
        model: In the form in which the model was given: a path, a proto, or an `onnx_ir.Model`.
        report: What was decided and measured.
        table: The report as a readable table.
    """

    model: Any
    report: QuantizeReport
    table: str

    @property
    def placement(self) -> Placement:
        """The inserted placement."""
        return self.report.placement

    @property
    def kept_float(self) -> bool:
        """Whether the original model was returned unchanged."""
        return self.report.kept_float

    @property
    def speedup(self) -> float | None:
        """Speedup over the original model; None if it was not measured."""
        return self.report.speedup

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        return self.report.headline

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: that of the report."""
        return self.report.to_dict()
