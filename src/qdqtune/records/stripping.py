"""What taking Q/DQ out of a model did."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from qdqtune.records.placement import Placement


@dataclass(frozen=True)
class StripReport:
    """What was taken out.

    Attributes:
        output: The file written.
        placement: What was quantized.
        pairs: How many DequantizeLinear nodes were taken out.
        left: How many Q and DQ nodes stayed, because they belong to no pair.
        rounded: How many weights have rounded values, because only those were in the file.
        sqnr_db: Signal-to-noise ratio per output of the file as given, against what was written;
            empty if unknown.
    """

    output: Path
    placement: Placement
    pairs: int
    left: int
    rounded: int
    sqnr_db: dict[str, float] = field(default_factory=dict)
