"""The interface of all strategies.

Trials, scores, limits, and the base classes that ask and are told.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from qdqtune.records._subgraphs import Batch
from qdqtune.search._space import Space, State

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


LAST = "against the best seed"
"""The stage of the last comparison, for which one candidate is always left."""


class Asking(ABC):
    """Asks for comparisons, is told their outcome, and knows the best placement so far.

    Args:
        space: What can be chosen.
        limits: How much it may do.

    Attributes:
        incumbent: The best choice so far.
        gain: Its estimated log speedup over the float model.
        asked: Candidates that were asked about.
        is_cut_short: Whether it left something untried for want of candidates.
        batches: What was tried, with what was expected of it.
    """

    def __init__(self, space: Space, limits: Limits) -> None:
        self.incumbent: State = frozenset()
        self.gain = 0.0
        self.asked = 0
        self.is_cut_short = False
        self.batches: list[Batch] = []
        self._space = space
        self._limits = limits
        self._tried: set[tuple[str, str, Effort]] = set()
        self._steps: Steps | None = None
        self._trial: Trial | None = None

    @abstractmethod
    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""

    def ask(self) -> Trial | None:
        """The comparison that is wanted next; None at the end."""
        if self._steps is None:
            self._steps = self.steps()
            self._trial = next(self._steps, None)
        return self._trial

    def tell(self, scores: Sequence[Score]) -> None:
        """Answer the comparison that was asked for, one score per candidate.

        Raises:
            ValueError: If nothing was asked, or the number is wrong.
        """
        trial = self.ask()
        if trial is None or self._steps is None or len(scores) != len(trial.candidates):
            raise ValueError("these are not the scores that were asked for")
        try:
            self._trial = self._steps.send(scores)
        except StopIteration:
            self._trial = None

    @property
    def _room(self) -> int:
        """Candidates that may still be asked about."""
        return max(0, self._limits.benchmarks - self.asked)

    def _is_new(self, reference: State, state: State, effort: Effort) -> bool:
        """Whether a comparison would tell anything that is not known."""
        own, key = self._space.key(reference), self._space.key(state)
        return key != own and (own, key, effort) not in self._tried

    def _compare(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str
    ) -> Generator[Trial, Sequence[Score], dict[State, Score]]:
        """Scores of states, in one trial; what was compared with it before is not asked again."""
        own = self._space.key(reference)
        wanted: dict[tuple[str, str, Effort], State] = {}
        for state in states:
            if self._is_new(reference, state, effort):
                wanted.setdefault((own, self._space.key(state), effort), state)
        room = self._room if stage in (SEEDS, LAST) else self._room - 1
        self.is_cut_short = self.is_cut_short or len(wanted) > room
        asked = dict(list(wanted.items())[: max(0, room)])
        if not asked:
            return {}
        self._tried.update(asked)
        self.asked += len(asked)
        scores = yield Trial(reference, tuple(asked.values()), effort, stage)
        return dict(zip(asked.values(), scores, strict=True))

    def _add(
        self,
        stage: str,
        changed: tuple[int, int],
        predicted: float,
        score: Score,
        *,
        accepted: bool,
    ) -> None:
        """Note what was tried: how many groups were quantized and dropped, and what came of it."""
        measured = None if score.failure is not None else speedup_of(score.gain)
        self.batches.append(Batch(stage, *changed, predicted, measured, score.error, accepted))
