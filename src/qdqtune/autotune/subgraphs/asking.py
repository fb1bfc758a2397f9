"""How a search asks: comparisons one after the other, none of them twice, and only so many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence

from qdqtune.autotune.search.space import Space, State
from qdqtune.autotune.search.strategy import Limits, Steps
from qdqtune.autotune.search.trial import SEEDS, Effort, Score, Trial, speedup_of
from qdqtune.records.subgraphs import Batch

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
