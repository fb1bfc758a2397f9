"""What an insertion did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, RangeMethod


@dataclass(frozen=True)
class InsertReport:
    """What an insertion did.

    Attributes:
        output: The file written.
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
    """

    output: Path
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
