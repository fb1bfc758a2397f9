"""The search: from the best whole-model seed to the fastest placement that can be found.

Few choices and many ask for different ways. Among few, everything that was measured can be weighed
to choose the next benchmark well, and pairs of choices matter: `bayesian`. Among many, each alone
is too small to be seen; those that are alike are tried together first: `local_search`.

No step has a threshold: many gains are small, and asking for 2 % each would throw them away. What a
lucky measurement decided is put right by those that follow, and by the workflow, which compares the
outcome with the float model anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qdqtune.search._space import Space, State
from qdqtune.search.strategies._bayesian import BayesianSearch
from qdqtune.search.strategies._local_search import LocalSearch
from qdqtune.search.strategies._strategy import Limits, Score, Strategy, Trial

__all__ = ["Limits", "PlacementSearch"]

# The most groups among which every benchmark is weighed.
_FEW = 12


class PlacementSearch:
    """Asks for comparisons, is told their outcome, and knows the best placement so far.

    Args:
        space: What can be chosen.
        seeds: Whole-model choices to begin with, by name; the float model is always one.
        limits: How much it may do.
        seed: Decides what chance decides.
    """

    def __init__(
        self,
        space: Space,
        seeds: Mapping[str, State],
        limits: Limits | None = None,
        seed: int = 0,
    ) -> None:
        way = BayesianSearch if len(space.groups) <= _FEW else LocalSearch
        begin = list(dict.fromkeys(space.closed(state) for state in seeds.values()))
        self._way: Strategy = way(space, begin, limits or Limits(), seed)
        self._steps = self._way.steps()
        self._trial = next(self._steps, None)

    @property
    def incumbent(self) -> State:
        """The best choice so far."""
        return self._way.incumbent

    @property
    def gain(self) -> float:
        """Its estimated log speedup over the float model."""
        return self._way.gain

    @property
    def asked(self) -> int:
        """Candidates that were asked about and not known before."""
        return self._way.asked

    @property
    def is_cut_short(self) -> bool:
        """Whether it would have gone on if it had been allowed more candidates."""
        return self._way.is_cut_short or self.asked >= self._way.limits.benchmarks

    @property
    def planned(self) -> int:
        """About how many candidates will have been asked about at the end."""
        groups = len(self._way.space.groups)
        return max(self.asked, min(self._way.limits.benchmarks, 12 + groups))

    def ask(self) -> Trial | None:
        """The comparison that is wanted next; None at the end of the search."""
        return self._trial

    def tell(self, scores: Sequence[Score]) -> None:
        """Answer the comparison that was asked for.

        Args:
            scores: One per candidate, in order.

        Raises:
            ValueError: If nothing was asked, or the number is wrong.
        """
        if self._trial is None or len(scores) != len(self._trial.candidates):
            raise ValueError("these are not the scores that were asked for")
        try:
            self._trial = self._steps.send(scores)
        except StopIteration:
            self._trial = None
