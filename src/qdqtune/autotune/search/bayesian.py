"""Bayesian search among few choices: the candidates with the largest expected gain first.

Whole-model seeds are compared first; the best is the incumbent. Then comes trial after trial: a
model of all choices (`bayesian_linear_model`) proposes candidates (`proposals`), the few with the
largest expected gain are timed against the incumbent, and all that was ever measured says which
choice is the best now. Candidates that were screened and still promise something are timed again,
with more effort. It ends when nothing promises a gain worth a benchmark. Then the closest rivals
are timed once more, and pairs that don't pay are dropped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from qdqtune.autotune.search.bayesian_linear_model import BayesianLinearModel, Floats
from qdqtune.autotune.search.proposals import expected_improvement, proposals
from qdqtune.autotune.search.space import Space, State
from qdqtune.autotune.search.strategy import Limits, Steps, Strategy
from qdqtune.autotune.search.trial import SEEDS, Effort, Score, Trial

_NOTHING: State = frozenset()
# Proposals whose placements are looked at: two of them may come to the same one.
_SHORTLIST = 24
# A saving too small to be seen, for which fewer pairs are the better choice.
_IDLE = 0.0005
# Candidates in a row that may bring nothing, by group and sweep.
_IDLE_PER_SWEEP = 3
_MOST_RIVALS = 2
# Candidates that the last two steps may need.
_RESERVED = _MOST_RIVALS + 1
# Expected differences up to this count as none.
_DIGITS = 9


class BayesianSearch(Strategy):
    """A search for few groups: every benchmark is weighed.

    Args:
        space: What can be chosen.
        seeds: Whole-model choices to begin with.
        limits: How much it may do.
        seed: Of the possible worlds in which proposals are looked for.
    """

    def __init__(self, space: Space, seeds: Sequence[State], limits: Limits, seed: int) -> None:
        super().__init__(space, seeds, limits)
        self._generator = np.random.default_rng(seed)
        self._regression = BayesianLinearModel(space)
        self._known: set[tuple[str, str, Effort]] = set()
        self._timed: dict[str, State] = {space.key(_NOTHING): _NOTHING}
        self._failed: set[str] = set()

    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""
        if not self.space.groups:
            return
        yield from self._compare(self._seeds, Effort.CONFIRM, SEEDS)
        yield from self._explore()
        yield from self._compare_with_rivals()
        yield from self._drop_what_does_not_pay()

    def _explore(self) -> Steps:
        idle, patience = 0, _IDLE_PER_SWEEP * self.limits.sweeps * len(self.space.groups)
        while idle < patience and self._room > _RESERVED:
            states, effort = self._most_promising(self._room - _RESERVED)
            if not states:
                return
            before = self.incumbent
            yield from self._compare(states, effort, f"{effort.value} proposals")
            idle = 0 if self.incumbent != before else idle + len(states)
        self.is_cut_short = idle < patience

    def _most_promising(self, room: int) -> tuple[list[State], Effort]:
        """The next candidates, and how well they should be timed."""
        short = self._shortlist()
        regression, chosen, effort = self._regression, list[State](), Effort.SCREEN
        while short and len(chosen) < min(room, self.limits.together):
            worth = self._worth(regression, short)
            best = int(np.argmax(worth))
            if worth[best] < self.limits.least_gain:
                break
            state = short.pop(best)
            wanted = self._next_effort(state)
            if wanted is None or (chosen and wanted is not effort):
                continue
            effort = wanted
            chosen.append(state)
            # Another one like it would tell less.
            regression = regression.imagining(self.incumbent, state)
        return chosen, effort

    def _shortlist(self) -> list[State]:
        starts = dict.fromkeys((self.incumbent, _NOTHING, self.space.everything, *self._seeds))
        pool = proposals(self.space, self._regression, list(starts), self._generator)
        pool += [state for state in self._timed.values() if state not in pool]
        order = np.argsort(-self._worth(self._regression, pool), kind="stable")[:_SHORTLIST]
        closed = dict.fromkeys(self._as_timed(pool[number]) for number in order)
        return [state for state in closed if self._next_effort(state) is not None]

    def _worth(self, regression: BayesianLinearModel, states: Sequence[State]) -> Floats:
        saved, deviation = regression.difference(states, self.incumbent)
        worth = expected_improvement(saved, deviation) / regression.latency(self.incumbent)
        rounded: Floats = np.round(worth, _DIGITS)
        return rounded

    def _next_effort(self, state: State) -> Effort | None:
        """How well a choice should be timed against the incumbent; None if that is known."""
        own, key = self.space.key(self.incumbent), self.space.key(state)
        if key == own or key in self._failed:
            return None
        return next((e for e in Effort if (own, key, e) not in self._known), None)

    def _compare_with_rivals(self) -> Steps:
        """Steps were decided on noise: time the best ones again, until the best stays the best."""
        before = None
        while before != self.incumbent:
            before = self.incumbent
            rivals = [state for state in self._timed.values() if state != self.incumbent]
            saved, deviation = self._regression.difference(rivals, self.incumbent)
            hopes = np.round(saved + deviation, _DIGITS)
            best = [n for n in np.argsort(-hopes, kind="stable") if hopes[n] > 0.0]
            yield from self._compare(
                [rivals[n] for n in best[:_MOST_RIVALS]], Effort.CONFIRM, "rivals"
            )

    def _drop_what_does_not_pay(self) -> Steps:
        """Take out groups whose absence is not expected to cost anything."""
        numbers = sorted(self.incumbent)
        without = [self.incumbent - {number} for number in numbers]
        saved, _ = self._regression.difference(without, self.incumbent)
        idle = frozenset(n for n, gain in zip(numbers, saved, strict=True) if gain > -_IDLE)
        less = self._as_timed(self.incumbent - idle)
        if not idle or len(less) >= len(self.incumbent):
            return
        yield from self._compare([less], Effort.CONFIRM, "backward")
        if self.space.key(less) in self._timed:
            (saved_by_less,), _ = self._regression.difference([less], self.incumbent)
            if saved_by_less > -_IDLE:
                self._settle_on(less)

    def _as_timed(self, state: State) -> State:
        """The choice under which what a choice comes to was timed, if it was."""
        return self._timed.get(self.space.key(state), self.space.closed(state))

    def _compare(self, states: Iterable[State], effort: Effort, stage: str) -> Steps:
        """Time choices against the incumbent, a few to a trial, each placement once."""
        reference, own = self.incumbent, self.space.key(self.incumbent)
        wanted: dict[str, State] = {}
        for state in states:
            key = self.space.key(state)
            if key != own and key not in self._failed and (own, key, effort) not in self._known:
                wanted.setdefault(key, state)
        waiting = list(wanted.values())[: self._room]
        while waiting:
            part = tuple(waiting[: self.limits.together])
            waiting = waiting[len(part) :]
            self.asked += len(part)
            scores = yield Trial(reference, part, effort, stage)
            self._learn(reference, part, scores, effort)
        if wanted:
            self._settle_on_best()

    def _learn(
        self, reference: State, states: Sequence[State], scores: Sequence[Score], effort: Effort
    ) -> None:
        self._regression.learn(reference, states, scores)
        for state, score in zip(states, scores, strict=True):
            key = self.space.key(state)
            self._known.add((self.space.key(reference), key, effort))
            if score.failure is None:
                self._timed.setdefault(key, state)
            elif key not in self._timed:
                self._failed.add(key)

    def _settle_on_best(self) -> None:
        states = [self.incumbent, *self._timed.values()]
        saved, _ = self._regression.difference(states, self.incumbent)
        self._settle_on(states[int(np.argmax(np.round(saved, _DIGITS)))])

    def _settle_on(self, state: State) -> None:
        self.incumbent = state
        self.gain = -math.log(self._regression.latency(state)) if state else 0.0
