"""Float precisions, and the report of a conversion between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from qdqtune.records._accuracy import finite
from qdqtune.records._errors import UsageError
from qdqtune.records._results import Result


class Precision(Enum):
    """A float type that a model can be computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


def precision_named(name: Precision | str | None) -> Precision | None:
    """Return the float type with a name such as ``fp16``; None stays None.

    Raises:
        UsageError: If no float type has that name.
    """
    try:
        return None if name is None else Precision(name)
    except ValueError:
        known = ", ".join(each.value for each in Precision)
        raise UsageError(f"There is no float type {name!r}.", f"There are: {known}.") from None


AUTO = "auto"
"""Leaves the choice of the float type to the engine and the model."""
FLOAT_TYPES = {
    "float32": Precision.FP32,
    "float16": Precision.FP16,
    "bfloat16": Precision.BF16,
}
"""Names of the float types that users type."""
CHOICES = (AUTO, *FLOAT_TYPES)
"""The values that users may pass."""
QUANT_TYPES = ("int8", "uint8", "fp8")
"""The types that tensors can be quantized to; a dialect supports some of them."""


@dataclass(frozen=True)
class PrecisionReport:
    """Changes that a conversion made to a model.

    Attributes:
        precision: The requested type.
        converted: Names of the nodes that changed their type.
        kept: Name to reason for nodes that could have been converted and were not.
        saturated: Names of constants with values beyond the range, now the largest finite number.
        casts: Number of Casts added, minus those removed.
        opset: The opset that the model was raised to; None if it was not.
        modified: Whether the model changed.
    """

    precision: Precision
    converted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    saturated: tuple[str, ...] = ()
    casts: int = 0
    opset: int | None = None
    modified: bool = False


@dataclass(frozen=True, repr=False)
class ConvertReport(Result):
    """Report of `convert`.

    Attributes:
        output: The file written.
        conversion: The changes.
        sqnr_db: Signal-to-noise ratio per output against the original model; empty if unknown or if
            nothing was converted.
        overflow: Name of the first node whose result is no longer finite; empty if there is none.
    """

    output: Path
    conversion: PrecisionReport
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    overflow: str = ""

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        done = self.conversion
        return f"{len(done.converted)} ops in {done.precision.value}, output {self.output}"

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a ratio without bounds is None."""
        conversion = self.conversion
        return {
            "kind": "conversion",
            "schema": 1,
            "output": str(self.output),
            "precision": conversion.precision.value,
            "modified": conversion.modified,
            "converted": list(conversion.converted),
            "kept": dict(conversion.kept),
            "saturated": list(conversion.saturated),
            "casts_added": conversion.casts,
            "raised_to_opset": conversion.opset,
            "output_sqnr_db": {name: finite(db) for name, db in self.sqnr_db.items()},
            "overflow": self.overflow or None,
        }
