"""The search: from the best whole-model seed, by small steps.

Whole-model seeds are raced first; the best is the incumbent. Then the groups are flipped, whole
patterns before single ones, those with the largest share of the latency first: a few flips at a
time are screened against the incumbent, and what looked better is tried together and in ever
smaller parts, of which the best is taken. What changed makes its neighbours worth another look.
At the end, pairs that don't pay are dropped.

No step has a threshold: many gains are small, and asking for 2 % each would throw them away. What
the steps decide on noise is put right by comparisons that are made anew, at the end with the best
seed, and by the workflow with the float model.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

from qdqtune.autotune.space import Space, State
from qdqtune.autotune.trial import Effort, Score, Trial

_Steps = Generator[Trial, Sequence[Score], None]
_NOTHING: State = frozenset()


@dataclass(frozen=True)
class Limits:
    """How much a search may do.

    Attributes:
        sweeps: How often the groups are gone through, at most.
        benchmarks: Candidates built and timed, at most.
        together: Candidates raced in one trial.
        batch: Flips screened before the good ones are taken.
        least_potential: Groups with a smaller share of the latency are flipped only together.
    """

    sweeps: int = 3
    benchmarks: int = 200
    together: int = 4
    batch: int = 12
    least_potential: float = 0.001


class PlacementSearch:
    """Asks for comparisons, is told their outcome, and knows the best placement so far.

    Args:
        space: What can be chosen.
        seeds: Whole-model choices to begin with, by name; the float model is always one.
        limits: How much it may do.
        seed: Decides between what is equal.

    Attributes:
        incumbent: The best choice so far.
        gain: Its estimated log speedup over the float model.
        asked: Candidates that were asked about and not known before.
    """

    def __init__(
        self, space: Space, seeds: dict[str, State], limits: Limits | None = None, seed: int = 0
    ) -> None:
        self.space = space
        self.limits = limits or Limits()
        self.incumbent: State = _NOTHING
        self.gain = 0.0
        self.asked = 0
        self._seeds = seeds
        self._best_seed: State = _NOTHING
        self._random = random.Random(seed)
        self._known: dict[tuple[str, str, Effort], Score] = {}
        self._steps = self._search()
        self._trial = next(self._steps, None)

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

    @property
    def planned(self) -> int:
        """About how many candidates will have been asked about at the end."""
        expected = len(self._seeds) + 2 * len(self.space.groups) + 8
        return max(self.asked, min(self.limits.benchmarks, expected))

    def _search(self) -> _Steps:
        yield from self._race_seeds()
        changed = self.space.everything
        for sweep in range(self.limits.sweeps):
            moves = self._moves(changed, coarse=sweep == 0)
            before = self.incumbent
            yield from self._try_moves(moves, f"sweep {sweep + 1}")
            changed = self.space.around(before ^ self.incumbent)
            if not changed or self._is_spent():
                break
        yield from self._drop_what_does_not_pay()
        yield from self._compare_with_best_seed()

    def _race_seeds(self) -> _Steps:
        states = list(dict.fromkeys(self._seeds.values()))
        scores = yield from self._compare(_NOTHING, states, Effort.CONFIRM, "seeds")
        for state in states:
            score = scores[state]
            if score.gain > self.gain:
                self.incumbent, self.gain = state, score.gain
        self._best_seed = self.incumbent

    def _moves(self, changed: State, *, coarse: bool) -> list[State]:
        """Sets of groups to flip, whole patterns first, the most promising first of each kind."""
        potential = self.space.potential
        small = frozenset(
            number for number in changed if potential[number] < self.limits.least_potential
        )
        whole: list[State] = []
        for numbers in self.space.patterns.values():
            members = frozenset(numbers) & changed
            if coarse and len(members) > 1:
                whole += (members & self.incumbent, members - self.incumbent)
        if coarse and small:
            whole += (small & self.incumbent, small - self.incumbent)
        single = [frozenset({number}) for number in sorted(changed - small)]
        self._random.shuffle(single)

        def by_potential(move: State) -> float:
            return -sum(potential[number] for number in move)

        moves = sorted(filter(None, whole), key=by_potential) + sorted(single, key=by_potential)
        return list(dict.fromkeys(moves))

    def _try_moves(self, moves: list[State], stage: str) -> _Steps:
        for start in range(0, len(moves), self.limits.batch):
            if self._is_spent():
                return
            batch = moves[start : start + self.limits.batch]
            candidates = {self.incumbent ^ move: move for move in batch}
            scores = yield from self._compare(self.incumbent, candidates, Effort.SCREEN, stage)
            promising = sorted(
                (state for state in candidates if scores[state].gain > 0.0),
                key=lambda state: -scores[state].certainty,
            )
            yield from self._take_best_part([candidates[state] for state in promising], stage)

    def _take_best_part(self, moves: list[State], stage: str) -> _Steps:
        """Make the first so many of the moves, best first: all, half, a quarter, ... or none."""
        parts: list[State] = []
        size = len(moves)
        while size:
            parts.append(self._flipped(moves[:size]))
            size //= 2
        yield from self._take_best(parts, stage)

    def _take_best(self, states: Iterable[State], stage: str, least: float = 0.0) -> _Steps:
        """Let the best of these be the incumbent, if it is probably no worse."""
        scores = yield from self._compare(self.incumbent, states, Effort.CONFIRM, stage)
        best = max(scores, key=lambda state: scores[state].gain, default=self.incumbent)
        if best != self.incumbent and scores[best].gain > least:
            self.incumbent = best
            self.gain += scores[best].gain

    def _flipped(self, moves: Iterable[State]) -> State:
        """The incumbent after some moves; a group that two of them name is flipped once."""
        return self.incumbent ^ _NOTHING.union(*moves)

    def _drop_what_does_not_pay(self) -> _Steps:
        """Take out groups whose absence was not seen to cost anything."""
        idle: list[tuple[float, int]] = []
        for number in sorted(self.incumbent):
            score = self._screened(self.incumbent - {number})
            if score is not None and score.certainty > -1.0:
                idle.append((-score.gain, number))
        moves = [frozenset({number}) for _, number in sorted(idle)]
        if moves and not self._is_spent():
            yield from self._take_best_part(moves, "backward")

    def _compare_with_best_seed(self) -> _Steps:
        """Steps were decided on noise: what they led to must still beat what they began with."""
        if self.incumbent in (self._best_seed, _NOTHING):
            return
        scores = yield from self._compare(
            self._best_seed, [self.incumbent], Effort.CONFIRM, "against the best seed"
        )
        if scores[self.incumbent].gain < 0.0:
            self.incumbent = self._best_seed

    def _screened(self, state: State) -> Score | None:
        keys = self.space.key(self.incumbent), self.space.key(state)
        return self._known.get((*keys, Effort.SCREEN))

    def _is_spent(self) -> bool:
        return self.asked >= self.limits.benchmarks

    def _compare(
        self, reference: State, states: Iterable[State], effort: Effort, stage: str
    ) -> Generator[Trial, Sequence[Score], dict[State, Score]]:
        """Scores of states, a few to a trial; what comes to the same placement is asked once."""
        own = self.space.key(reference)
        found = {state: self.space.key(state) for state in states}
        wanted: dict[str, State] = {}
        for state, key in found.items():
            if key != own and (own, key, effort) not in self._known:
                wanted.setdefault(key, state)
        states = list(wanted.values())
        for start in range(0, len(states), self.limits.together):
            part = tuple(states[start : start + self.limits.together])
            self.asked += len(part)
            scores = yield Trial(reference, part, effort, stage)
            for state, score in zip(part, scores, strict=True):
                self._known[own, found[state], effort] = score
        same = Score(0.0, 0.0)
        return {
            state: same if key == own else self._known[own, key, effort]
            for state, key in found.items()
        }
