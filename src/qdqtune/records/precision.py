"""Float precisions, and what a conversion between them did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class Precision(Enum):
    """A float type that a model can be computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


AUTO = "auto"
"""What leaves the choice of a float type to the engine and the model."""
FLOAT_TYPES = {
    "float32": Precision.FP32,
    "float16": Precision.FP16,
    "bfloat16": Precision.BF16,
}
"""What users call them."""
CHOICES = (AUTO, *FLOAT_TYPES)
"""What users may ask for."""
QUANT_TYPES = ("int8", "uint8", "fp8")
"""What tensors can be quantized to; a dialect offers some of these types."""


@dataclass(frozen=True)
class PrecisionReport:
    """What a conversion did to a model.

    Attributes:
        precision: What was asked for.
        converted: Names of the nodes that changed their type.
        kept: Name to reason for nodes that could have changed and did not.
        saturated: Names of constants that hold numbers beyond the range, now the largest finite.
        casts: How many Casts the model gained, less those it lost.
        opset: The opset that the model was raised to; None if it was not.
        modified: Whether the model is another one than before.
    """

    precision: Precision
    converted: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    saturated: tuple[str, ...] = ()
    casts: int = 0
    opset: int | None = None
    modified: bool = False


@dataclass(frozen=True)
class ConvertReport:
    """What `convert` wrote.

    Attributes:
        output: The file written.
        conversion: What was changed.
        sqnr_db: Signal-to-noise ratio per output against the model before; empty if unknown or if
            nothing was converted.
        overflow: Name of the first node whose result is no longer finite; empty if there is none.
    """

    output: Path
    conversion: PrecisionReport
    sqnr_db: Mapping[str, float] = field(default_factory=dict)
    overflow: str = ""
