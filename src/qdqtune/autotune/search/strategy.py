"""What every way to search has in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from qdqtune.autotune.search.space import Space, State
from qdqtune.autotune.search.trial import Score, Trial

Steps = Generator[Trial, Sequence[Score], None]
"""Trials, each answered with one score per candidate."""


@dataclass(frozen=True)
class Limits:
    """How much a search may do.

    Attributes:
        sweeps: Patience: among many groups, batches in a row that may bring nothing before the next
            kind of step is tried; among few, a measure of the candidates in a row that may.
        benchmarks: Candidates built and timed, at most.
        together: Candidates compared in one trial.
        least_gain: Expected relative gain below which a candidate is not worth a benchmark.
    """

    sweeps: int = 2
    benchmarks: int = 200
    together: int = 4
    least_gain: float = 0.0002


class Strategy(ABC):
    """A way to search.

    Args:
        space: What can be chosen.
        seeds: Whole-model choices to begin with; the float model is always one.
        limits: How much it may do.

    Attributes:
        incumbent: The best choice so far.
        gain: Its estimated log speedup over the float model.
        asked: Candidates that were asked about and not known before.
        is_cut_short: Whether it left something untried for want of candidates.
    """

    def __init__(self, space: Space, seeds: Sequence[State], limits: Limits) -> None:
        self.space = space
        self.limits = limits
        self.incumbent: State = frozenset()
        self.gain = 0.0
        self.asked = 0
        self.is_cut_short = False
        self._seeds = list(seeds)

    @abstractmethod
    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""

    @property
    def _room(self) -> int:
        """Candidates that may still be asked about."""
        return max(0, self.limits.benchmarks - self.asked)
