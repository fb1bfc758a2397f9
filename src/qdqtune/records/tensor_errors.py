"""Errors of a quantized model's tensors against those of its float model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class TensorError:
    """One tensor of both models, over all samples.

    Attributes:
        signal: Sum of the squares of its float values.
        noise: Sum of the squares of the quantized model's errors.
        power: Sum of the squares of the quantized model's values.
        max_error: Largest absolute error.
        max_value: Largest float value, in magnitude.
    """

    signal: float = 0.0
    noise: float = 0.0
    power: float = 0.0
    max_error: float = 0.0
    max_value: float = 0.0

    def __add__(self, other: TensorError) -> TensorError:
        return TensorError(
            signal=self.signal + other.signal,
            noise=self.noise + other.noise,
            power=self.power + other.power,
            max_error=max(self.max_error, other.max_error),
            max_value=max(self.max_value, other.max_value),
        )

    @property
    def sqnr_db(self) -> float:
        """Signal over noise in dB: infinite if the tensors are equal, minus infinite for NaN."""
        if not math.isfinite(self.noise):
            return -math.inf
        if self.noise == 0.0:
            return math.inf
        if not 0.0 < self.signal < math.inf:
            return -math.inf
        return 10.0 * (math.log10(self.signal) - math.log10(self.noise))

    @property
    def cosine(self) -> float:
        """Cosine similarity of both tensors: 1 if both are zero, 0 if only one is."""
        if not math.isfinite(self.noise + self.power):
            return math.nan
        if not self.signal or not self.power:
            return 1.0 if self.signal == self.power else 0.0
        product = (self.signal + self.power - self.noise) / 2
        return max(-1.0, min(1.0, product / math.sqrt(self.signal) / math.sqrt(self.power)))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; None stands for infinite or undefined values."""
        return {
            name: value if math.isfinite(value) else None
            for name in ("sqnr_db", "cosine", "max_error", "max_value")
            for value in [float(getattr(self, name))]
        }


@dataclass(frozen=True, kw_only=True)
class OpError(TensorError):
    """The error of one quantized op's result.

    Attributes:
        node: The op's node.
        op_type: Its type.
        tensor: The output that was compared.
        inputs: Types of its quantized inputs.
    """

    node: str
    op_type: str
    tensor: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class OutputError:
    """The error of one model output.

    Attributes:
        name: Its name.
        error: Its error; None if it does not hold floats.
        equal: Share of its elements that are equal in both models.
    """

    name: str
    error: TensorError | None
    equal: float
