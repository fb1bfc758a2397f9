"""A strategy that asks what another one asks, and ends with what a test wants."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qdqtune.search._space import State
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import Score, SearchStrategy, SearchTask, Trial


class Ending(SearchStrategy):
    """Delegates to another strategy, but has a best of its own."""

    def __init__(self, inner: SearchStrategy, best: State) -> None:
        super().__init__(inner.task)
        self.best = best
        self._inner = inner

    def ask(self) -> Sequence[Trial]:
        return self._inner.ask()

    def tell(self, trial: Trial, scores: Sequence[Score]) -> None:
        self._inner.tell(trial, scores)
        self.gain, self.is_cut_short = self._inner.gain, self._inner.is_cut_short


def end_with(monkeypatch: pytest.MonkeyPatch, best: State) -> None:
    """Let every search of region mode end with this choice."""

    def make(task: SearchTask, name: str) -> SearchStrategy:
        return Ending(make_strategy(task, name), best)

    monkeypatch.setattr("qdqtune.workflows.tuning._modes.make_strategy", make)
