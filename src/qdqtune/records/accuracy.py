"""How accurate a result must be, and what was rejected because it was not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qdqtune.records.errors import UsageError

# Below this, task metrics suffer: a MiniLM's sentences have cosines of 0.97 to float at 10 dB,
# 0.993 at 15 dB.
DEFAULT_MIN_SQNR_DB = 15.0
SQNR, APPROXIMATE_SQNR, METRIC = "sqnr_db", "approximate_sqnr_db", "metric"
"""What is measured of a placement."""
_NEAR_DB = 1.0


def is_near_limit(sqnr_db: float | None, min_sqnr_db: float | None) -> bool:
    """Whether a result that is accurate enough is so by less than 1 dB.

    Args:
        sqnr_db: Of its worst output; None if unknown.
        min_sqnr_db: The least that was asked for; None if nothing was.
    """
    if sqnr_db is None or min_sqnr_db is None:
        return False
    return 0.0 <= sqnr_db - min_sqnr_db < _NEAR_DB


def allowed_sqnr_db(min_sqnr_db: float, float_sqnr_db: float | None) -> float:
    """How near to float32 a result must be, if the float model itself is not computed in that.

    The noise of the engine's own float type is not quantization's, so it is allowed beside the
    noise that was asked for; but no more than that once again, which is 3 dB: what ships is to be
    near the model as it is written.

    Args:
        min_sqnr_db: The least that was asked for.
        float_sqnr_db: How near the float model is, as the engine computes it; None is float32.
    """
    if float_sqnr_db is None:
        return min_sqnr_db
    excused = 10.0 ** (-max(float_sqnr_db - min_sqnr_db, 0.0) / 10.0)
    return min_sqnr_db - 10.0 * math.log10(1.0 + excused)


@dataclass(frozen=True)
class Rejected:
    """A candidate that was fast, but not accurate enough.

    Attributes:
        name: What it was.
        qdq_pairs: Tensors that are quantized in it.
        sqnr_db: Of its worst output; None if unknown, or if the engine does not run it.
        metric: What the user's function returned for it; None if it was not called.
        reason: Which limit it missed.
    """

    name: str
    qdq_pairs: int
    sqnr_db: float | None
    metric: float | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**vars(self), "sqnr_db": finite(self.sqnr_db), "metric": finite(self.metric)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Rejected:
        """Read the JSON form."""
        return cls(**value)


def finite(number: float | None) -> float | None:
    """A number as JSON has it: None if it is infinite or unknown."""
    return number if number is not None and math.isfinite(number) else None


def checked_metric(value: object, name: str) -> float:
    """What a user's function returned, as a number.

    Raises:
        UsageError: If it is none.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(
            f"{name} returned {value!r}, which is not a number, or not a finite one.",
            "It takes the path of a model and returns a metric: more is better.",
        )
    return number
