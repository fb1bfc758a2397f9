"""What an insertion did."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource


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
        sqnr_db: Signal-to-noise ratio per output against the float model; empty if unknown.
    """

    output: Path
    dialect: str
    quant_type: str
    quantized: tuple[str, ...]
    left_float: dict[str, str]
    placement: Placement
    pairs: int
    calibration: CalibrationSource
    sqnr_db: dict[str, float]
