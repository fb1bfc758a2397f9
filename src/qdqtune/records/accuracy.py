"""Accuracy limits of a result, and the candidates that were rejected for missing them."""

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
"""The quantity that is measured for a placement."""
_NEAR_DB = 1.0


def is_near_limit(sqnr_db: float | None, min_sqnr_db: float | None) -> bool:
    """Whether a result meets the SQNR limit by less than 1 dB.

    Args:
        sqnr_db: SQNR of its worst output; None if unknown.
        min_sqnr_db: The requested minimum; None if there is none.
    """
    if sqnr_db is None or min_sqnr_db is None:
        return False
    return 0.0 <= sqnr_db - min_sqnr_db < _NEAR_DB


def allowed_sqnr_db(min_sqnr_db: float, float_sqnr_db: float | None) -> float:
    """The SQNR limit against float32, for an engine that computes the float model in another type.

    The noise of the engine's own float type is not caused by quantization, so it is allowed on top
    of the requested limit, but at most as much noise again (3 dB): the result must stay near the
    model as written.

    Args:
        min_sqnr_db: The requested minimum.
        float_sqnr_db: SQNR of the float model as the engine computes it; None for float32.
    """
    if float_sqnr_db is None:
        return min_sqnr_db
    excused = 10.0 ** (-max(float_sqnr_db - min_sqnr_db, 0.0) / 10.0)
    return min_sqnr_db - 10.0 * math.log10(1.0 + excused)


@dataclass(frozen=True)
class Rejected:
    """A candidate that was fast but not accurate enough.

    Attributes:
        name: Its name.
        qdq_pairs: Number of tensors quantized in it.
        sqnr_db: SQNR of its worst output; None if unknown, or if the engine can't run it.
        metric: The value of the user's metric; None if the metric was not called.
        reason: The limit that it missed.
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
    """Return a number in its JSON form: None if it is infinite or unknown."""
    return number if number is not None and math.isfinite(number) else None


def checked_metric(value: object, name: str) -> float:
    """Convert the return value of a user's metric to a float.

    Raises:
        UsageError: If it is not a number.
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
