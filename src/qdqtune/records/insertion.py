"""What an insertion did."""

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
    """What an insertion did.

    Attributes:
        output: The file written; None if there is none.
        dialect: Name of the dialect.
        quant_type: Quant type.
        quantized: Names of the nodes that were chosen and quantized.
        left_float: Name to reason for nodes that were chosen and could not be.
        placement: What was inserted.
        pairs: Tensors that got Q/DQ.
        calibration: Where the ranges come from.
        calibrated_on: The samples in words.
        method: How the ranges followed from the samples.
        tried_db: The worst output's ratio for every method that was tried.
        scales_kept: How many activations keep a scale that came with the model.
        ranges_kept: How many keep its range only, because the dialect can't express the scale.
        sqnr_db: Signal-to-noise ratio per output against the float model; empty if unknown.
        sqnr_given_db: The same against the Q/DQ model that was given; empty for a float one.
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
