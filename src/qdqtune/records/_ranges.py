"""The range of values that each tensor takes during calibration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from qdqtune.records._errors import LimitError, UsageError
from qdqtune.records._json_form import Record
from qdqtune.records._untrusted_files import SCHEMAS, parse_json, versioned


class CalibrationSource(str, Enum):
    """The source of the ranges, which determines how far the measured accuracy can be trusted."""

    DATA = "data"
    RANDOM = "random"
    GIVEN = "given"  # scales that came with a quantized model
    NONE = "none"  # nothing depends on ranges: inputs are quantized at run time, or not at all


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
"""The warning about every model whose scales come from random inputs."""


@dataclass(frozen=True)
class Ranges(Record):
    """Smallest and largest value per tensor.

    Attributes:
        by_tensor: Tensor name to (low, high).
        source: Real data, or random inputs.
        samples: Number of input sets that were run.
    """

    KIND: ClassVar[str] = "ranges"
    SCHEMA: ClassVar[int] = SCHEMAS["ranges"]
    JSON: ClassVar[str] = "source samples ranges=by_tensor"

    by_tensor: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    source: CalibrationSource = CalibrationSource.RANDOM
    samples: int = 0

    def check(self) -> None:
        """See `Record.check`."""
        if any(low > high for low, high in self.by_tensor.values()):
            raise ValueError("the low end of a range is above its high end")

    def digest(self) -> str:
        """A short hash of every range, for memo keys."""
        text = json.dumps(sorted(self.by_tensor.items()))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def to_json(self) -> str:
        """Write the file form, `ranges.json`."""
        body = self.to_dict()
        return json.dumps(body | {"ranges": dict(sorted(body["ranges"].items()))}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, name: str = "ranges") -> Ranges:
        """Read the file form.

        Args:
            text: The file's content.
            name: The file's name in an error message.

        Raises:
            UsageError: If the text is not a ranges file.
        """
        try:
            return cls.from_dict(versioned(parse_json(text, name), "ranges", name))
        except LimitError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{name} is not a ranges file: {error}.", "Calibrate again to get one."
            ) from None
