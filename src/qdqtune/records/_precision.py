"""Float precisions, and the report of a conversion between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Precision(str, Enum):
    """A float type that a model can be computed in."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"


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
