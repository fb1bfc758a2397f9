"""What trained models are for, measured: questions, the answers in outputs, and how good they are.

Nothing that a model is calibrated on is among its questions.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.real.wheels import Array, Part, Sample, Wheels

Outputs = Mapping[str, Array]
Score = Mapping[str, float]

_EPSILON = 1e-9


@dataclass(frozen=True)
class Bar:
    """What a quantized model has to reach.

    Attributes:
        figure: The figure of the score that counts.
        least: Its least value.
        most_drop: How much less than the float model's it may be.
        most_apart: How far from it the same file may be as it is written, without fused kernels.
    """

    figure: str
    least: float | None = None
    most_drop: float | None = None
    most_apart: float | None = None

    def missed(self, of_float: Score, quantized: Score, as_written: Score) -> str:
        """What is not reached; empty if all is."""
        found = quantized[self.figure]
        missed = []
        if self.least is not None and found < self.least - _EPSILON:
            missed.append(f"under {self.least:g}")
        drop = of_float[self.figure] - found
        if self.most_drop is not None and drop > self.most_drop + _EPSILON:
            missed.append(f"{drop:.3f} under float")
        apart = abs(as_written[self.figure] - found)
        if self.most_apart is not None and apart > self.most_apart + _EPSILON:
            missed.append(f"{apart:.3f} apart")
        return ", ".join(missed)

    def __str__(self) -> str:
        parts = []
        if self.least is not None:
            parts.append(f">= {self.least:g}")
        if self.most_drop is not None:
            parts.append(f"float - {self.most_drop:g}")
        if self.most_apart is not None:
            parts.append(f"apart <= {self.most_apart:g}")
        return ", ".join(parts)


class Task(ABC):
    """A trained model and what it is good for.

    Args:
        models: The folder of models.
        wheels: Where samples come from.
    """

    model: ClassVar[str]
    bar: ClassVar[Bar]

    def __init__(self, models: Path, wheels: Wheels) -> None:
        self.path = models / self.model
        self.wheels = wheels

    @abstractmethod
    def calibration_sets(self, sets: int) -> Mapping[str, list[Sample]]:
        """So many sets of calibration samples by label, or fewer."""

    @abstractmethod
    def questions(self) -> Sequence[Sample]:
        """What the model is asked; always the same."""

    @abstractmethod
    def answer(self, question: Sample, outputs: Outputs, /) -> Any:
        """What the model says to one of them."""

    @abstractmethod
    def score(self, answers: Sequence[Any], of_float: Sequence[Any], /) -> Score:
        """How good the answers are, by themselves or beside the float model's."""


def stretches(samples: Iterator[Sample], sets: int) -> Mapping[str, list[Sample]]:
    """Calibration sets out of one stream, one after the other."""
    count = Part.CALIBRATION.samples
    return {f"set {number + 1}": list(itertools.islice(samples, count)) for number in range(sets)}
