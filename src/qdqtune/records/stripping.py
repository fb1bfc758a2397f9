"""Report of removing Q/DQ from a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtune.records.accuracy import finite
from qdqtune.records.placement import Placement
from qdqtune.records.result import Result


@dataclass(frozen=True, repr=False)
class StripReport(Result):
    """Report of removing Q/DQ from a model.

    Attributes:
        output: The file written; None if there is none.
        placement: What was quantized.
        pairs: Number of DequantizeLinear nodes removed.
        left: Number of Q and DQ nodes that stayed because they are not part of a pair.
        rounded: Number of weights with rounded values, because the file held no others.
        sqnr_db: Signal-to-noise ratio per output of the original file against the written one;
            empty if unknown.
        model: The float model, in the form in which the model was given.
    """

    output: Path | None
    placement: Placement
    pairs: int
    left: int
    rounded: int
    sqnr_db: dict[str, float] = field(default_factory=dict)
    model: Any = field(default=None, compare=False)

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        taken = f"took {self.pairs} DequantizeLinear off {len(self.placement.tensors)} tensors"
        return taken if self.output is None else f"{taken}, output {self.output}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a ratio without bounds is None."""
        return {
            "kind": "stripping",
            "schema": 1,
            "output": str(self.output) if self.output is not None else None,
            "qdq_pairs": self.pairs,
            "tensors": sorted(self.placement.tensors),
            "left": self.left,
            "rounded_weights": self.rounded,
            "output_sqnr_db": {name: finite(db) for name, db in self.sqnr_db.items()},
        }
