"""Report of an insertion of Q/DQ."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtune.records.accuracy import finite
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, RangeMethod
from qdqtune.records.result import Result


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
        parts = [
            f"{len(self.quantized)} ops, {self.pairs} tensors {self.quant_type} in {self.dialect}",
            *([f"SQNR {worst:.1f} dB"] if worst is not None else []),
            *([f"output {self.output}"] if self.output is not None else []),
        ]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a ratio without bounds is None."""
        return {
            "kind": "insertion",
            "schema": 1,
            "output": str(self.output) if self.output is not None else None,
            "dialect": self.dialect,
            "quant_type": self.quant_type,
            "calibration": self.calibration.value,
            "calibration_method": self.method.value,
            "tried_sqnr_db": {name: finite(db) for name, db in self.tried_db.items()},
            "quantized": list(self.quantized),
            "left_float": dict(self.left_float),
            "qdq_pairs": self.pairs,
            "scales_kept": self.scales_kept,
            "ranges_kept": self.ranges_kept,
            "output_sqnr_db": {name: finite(db) for name, db in self.sqnr_db.items()},
            "output_sqnr_given_db": {name: finite(db) for name, db in self.sqnr_given_db.items()},
        }
