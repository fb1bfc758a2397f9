"""The range of values that each tensor takes during calibration."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._untrusted_files import SCHEMAS, check_schema, parse_json

SCHEMA = SCHEMAS["ranges"]


class CalibrationSource(str, Enum):
    """The source of the ranges, which determines how far the measured accuracy can be trusted."""

    DATA = "data"
    RANDOM = "random"
    GIVEN = "given"  # scales that came with a quantized model


class RangeMethod(str, Enum):
    """How a range is computed from the values of a tensor."""

    MAX = "max"  # covers all values
    ENTROPY = "entropy"  # minimizes the divergence between quantized and real distributions
    PERCENTILE = "percentile"  # covers all but one in ten thousand
    MSE = "mse"  # minimizes the mean squared error, by clipping rare values

    @classmethod
    def _missing_(cls, value: object) -> RangeMethod | None:
        return cls.MAX if value == "minmax" else None  # its name in earlier files and command lines


RANDOM_WARNING = (
    "Calibrated on random inputs: good for timing, not for deployment; "
    "accuracy on real data is unknown."
)
"""Said of every model whose scales come from random inputs."""


@dataclass(frozen=True)
class Ranges:
    """Smallest and largest value per tensor.

    Attributes:
        by_tensor: Tensor name to (low, high).
        source: Real data, or random inputs.
        samples: Number of input sets that were run.
    """

    by_tensor: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: CalibrationSource = CalibrationSource.RANDOM
    samples: int = 0

    def digest(self) -> str:
        """A short hash of every range, for memo keys."""
        text = json.dumps(sorted(self.by_tensor.items()))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """Write the file form, `ranges.json`."""
        body = {
            "kind": "ranges",
            "schema": SCHEMA,
            "source": self.source.value,
            "samples": self.samples,
            "ranges": {name: list(pair) for name, pair in sorted(self.by_tensor.items())},
        }
        return json.dumps(body, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "ranges") -> Ranges:
        """Read the file form.

        Args:
            text: The file's content.
            name: What to call the file in an error message.

        Raises:
            UsageError: If the text is not a ranges file.
        """
        try:
            body = parse_json(text, name)
            if body["kind"] == "ranges":
                check_schema("ranges", body["schema"], name)
            if body["kind"] != "ranges" or body["schema"] != SCHEMA:
                raise ValueError(f"kind {body['kind']!r}, schema {body['schema']!r}")
            pairs = {
                tensor: (float(low), float(high)) for tensor, (low, high) in body["ranges"].items()
            }
            if not all(
                math.isfinite(low) and low <= high < math.inf for low, high in pairs.values()
            ):
                raise ValueError("a range is not finite, or its low end is above its high end")
            return cls(pairs, CalibrationSource(body["source"]), int(body["samples"]))
        except LimitError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise UsageError(
                f"{name} is not a ranges file: {error}.", "Calibrate again to get one."
            ) from None
