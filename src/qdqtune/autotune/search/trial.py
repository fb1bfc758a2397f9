"""What a search asks, and what it is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from qdqtune.autotune.search.space import State

SEEDS = "seeds"
"""The stage of the first trials: whole-model choices against the float model."""


_LARGEST_GAIN = 100.0


class Effort(Enum):
    """How long a comparison may take: a few rounds sort out, more decide."""

    SCREEN = "screen"
    CONFIRM = "confirm"


@dataclass(frozen=True)
class Trial:
    """Candidates to be timed against a reference, in one interleaved run.

    Attributes:
        reference: What they are compared with.
        candidates: What is in question.
        effort: How well it has to be known.
        stage: What the search is at, for people.
    """

    reference: State
    candidates: tuple[State, ...]
    effort: Effort
    stage: str


@dataclass(frozen=True)
class Score:
    """How much faster than the reference a candidate is.

    Attributes:
        gain: Logarithm of reference over candidate latency: above 0 where the candidate is faster.
        error: Standard error of it.
        failure: Why the candidate could not be timed; None when it was.
    """

    gain: float
    error: float
    failure: str | None = None

    @classmethod
    def failed(cls, why: str) -> Score:
        """The score of a candidate that the engine would not take."""
        return cls(-math.inf, 0.0, why)

    @property
    def certainty(self) -> float:
        """The gain in standard errors."""
        if self.failure is not None:
            return -math.inf
        if self.error > 0.0:
            return self.gain / self.error
        return math.copysign(math.inf, self.gain) if self.gain else 0.0


def speedup_of(gain: float) -> float:
    """What a gain comes to as a ratio of latencies.

    Args:
        gain: The logarithm of it; a sum of many that make no sense has no larger speedup than
            numbers can tell.
    """
    return math.exp(min(max(gain, -_LARGEST_GAIN), _LARGEST_GAIN))
