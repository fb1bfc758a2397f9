"""Bayesian search among few choices: the candidates with the largest expected improvement first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from qdqtune.search._space import Space, State
from qdqtune.search.strategies._bayesian_linear_model import BayesianLinearModel, Floats
from qdqtune.search.strategies._strategy import (
    SEEDS,
    Effort,
    Score,
    SearchTask,
    SteppedStrategy,
    Steps,
    Trial,
)

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
_WORLDS = 8
# The model is simpler than machines are, and therefore too sure of itself.
_OPTIMISM = 2.0
# Worlds are guesses: a choice far away from all that was measured is right about too few of them.
_MOST_STEPS = 8
_NORMAL = math.sqrt(2.0 * math.pi)


def proposals(
    space: Space,
    regression: BayesianLinearModel,
    starts: Sequence[State],
    generator: np.random.Generator,
) -> list[State]:
    """Choices worth a thought.

    These are the best ones in the expected world and in some possible ones, and the neighbours of
    the incumbent: one group flipped, two neighbours, a whole pattern.

    Args:
        space: The choices.
        regression: What is known about them.
        starts: Where to look for the best from; the incumbent first.
        generator: Draws the worlds.
    """
    incumbent = starts[0]
    found: list[State] = []
    worlds = [regression.effects(), *(regression.effects(generator) for _ in range(_WORLDS))]
    for effects in worlds:
        best = [ascend(start, effects, regression.pairs) for start in starts]
        found.append(max(best, key=lambda state: value_of(state, effects, regression.pairs)))
    found += [incumbent ^ {number} for number in range(len(space.groups))]
    found += [incumbent ^ {*pair} for pair in regression.pairs]
    for numbers in space.patterns.values():
        found += (incumbent | {*numbers}, incumbent - {*numbers})
    return [state for state in dict.fromkeys(found) if state != incumbent]


def ascend(start: State, effects: tuple[Floats, Floats], pairs: Sequence[tuple[int, int]]) -> State:
    """The choice from which neither a flip of one group nor of two neighbours leads higher."""
    of_groups, of_boundaries = effects
    first = np.array([i for i, _ in pairs], dtype=np.intp)
    second = np.array([j for _, j in pairs], dtype=np.intp)
    signs = np.ones(len(of_groups))  # 1 where a flip quantizes
    signs[list(start)] = -1.0
    for _ in range(_MOST_STEPS):
        # A flip makes a boundary where there is none, and takes away the one that there is.
        made = of_boundaries * signs[first] * signs[second]
        single = of_groups * signs
        np.add.at(single, first, made)
        np.add.at(single, second, made)
        both = single[first] + single[second] - 2.0 * made
        best_single = int(np.argmax(single))
        best_both = int(np.argmax(both)) if len(both) else -1
        if best_both >= 0 and both[best_both] > max(single[best_single], 1e-12):
            signs[[first[best_both], second[best_both]]] *= -1.0
        elif single[best_single] > 1e-12:
            signs[best_single] *= -1.0
        else:
            break
    return frozenset(np.flatnonzero(signs < 0.0).tolist())


def value_of(
    state: State, effects: tuple[Floats, Floats], pairs: Iterable[tuple[int, int]]
) -> float:
    """The sum of all effects on a choice."""
    of_groups, of_boundaries = effects
    crossed = [number for number, (i, j) in enumerate(pairs) if (i in state) != (j in state)]
    return float(of_groups[list(state)].sum() + of_boundaries[crossed].sum())


def expected_improvement(mean: Floats, deviation: Floats) -> Floats:
    """How much better than the incumbent each choice is on average, where worse counts as 0."""
    deviation = _OPTIMISM * deviation
    distance = mean / deviation
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in distance])
    result: Floats = mean * below + deviation * np.exp(-0.5 * distance**2) / _NORMAL
    return result


class BayesianSearch(SteppedStrategy):
    """A search for few groups: every benchmark is weighed."""

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self._generator = np.random.default_rng(task.seed)
        self._regression = BayesianLinearModel(self.space)
        self._timed: dict[str, State] = {self.space.key(_NOTHING): _NOTHING}
        self._failed: set[str] = set()

    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""
        if not self.space.groups:
            return
        yield from self._compare_with_best(self._seeds, Effort.CONFIRM, SEEDS)
        yield from self._explore()
        yield from self._compare_with_rivals()
        yield from self._drop_what_does_not_pay()
        self.is_cut_short |= not self._room

    def _explore(self) -> Steps:
        idle, patience = 0, _IDLE_PER_SWEEP * self.limits.sweeps * len(self.space.groups)
        while idle < patience and self._room > _RESERVED:
            states, effort = self._most_promising(self._room - _RESERVED)
            if not states:
                return
            before = self.best
            yield from self._compare_with_best(states, effort, f"{effort.value} proposals")
            idle = 0 if self.best != before else idle + len(states)
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
            regression = regression.imagining(self.best, state)
        return chosen, effort

    def _shortlist(self) -> list[State]:
        starts = dict.fromkeys((self.best, _NOTHING, self.space.everything, *self._seeds))
        pool = proposals(self.space, self._regression, list(starts), self._generator)
        pool += [state for state in self._timed.values() if state not in pool]
        order = np.argsort(-self._worth(self._regression, pool), kind="stable")[:_SHORTLIST]
        closed = dict.fromkeys(self._as_timed(pool[number]) for number in order)
        return [state for state in closed if self._next_effort(state) is not None]

    def _worth(self, regression: BayesianLinearModel, states: Sequence[State]) -> Floats:
        saved, deviation = regression.difference(states, self.best)
        worth = expected_improvement(saved, deviation) / regression.latency(self.best)
        rounded: Floats = np.round(worth, _DIGITS)
        return rounded

    def _next_effort(self, state: State) -> Effort | None:
        """How well a choice should be timed against the incumbent; None if that is known."""
        if self.space.key(state) in self._failed:
            return None
        return next((e for e in Effort if self._is_new(self.best, state, e)), None)

    def _compare_with_rivals(self) -> Steps:
        """Steps were decided on noise: time the best ones again, until the best stays the best."""
        before = None
        while before != self.best:
            before = self.best
            rivals = [state for state in self._timed.values() if state != self.best]
            saved, deviation = self._regression.difference(rivals, self.best)
            hopes = np.round(saved + deviation, _DIGITS)
            best = [n for n in np.argsort(-hopes, kind="stable") if hopes[n] > 0.0]
            yield from self._compare_with_best(
                [rivals[n] for n in best[:_MOST_RIVALS]], Effort.CONFIRM, "rivals"
            )

    def _drop_what_does_not_pay(self) -> Steps:
        """Take out groups whose absence is not expected to cost anything."""
        numbers = sorted(self.best)
        without = [self.best - {number} for number in numbers]
        saved, _ = self._regression.difference(without, self.best)
        idle = frozenset(n for n, gain in zip(numbers, saved, strict=True) if gain > -_IDLE)
        less = self._as_timed(self.best - idle)
        if not idle or len(less) >= len(self.best):
            return
        yield from self._compare_with_best([less], Effort.CONFIRM, "backward")
        if self.space.key(less) in self._timed:
            (saved_by_less,), _ = self._regression.difference([less], self.best)
            if saved_by_less > -_IDLE:
                self._settle_on(less)

    def _as_timed(self, state: State) -> State:
        """The choice under which what a choice comes to was timed, if it was."""
        return self._timed.get(self.space.key(state), self.space.closed(state))

    def _compare_with_best(self, states: Iterable[State], effort: Effort, stage: str) -> Steps:
        """Time choices against the incumbent, and settle on the best of all."""
        sound = [state for state in states if self.space.key(state) not in self._failed]
        if any(self._is_new(self.best, state, effort) for state in sound):
            yield from self._compare(self.best, sound, effort, stage)
            self._settle_on_best()

    def _learn(self, trial: Trial, scores: Sequence[Score]) -> None:
        self._regression.learn(trial.reference, trial.candidates, scores)
        for state, score in zip(trial.candidates, scores, strict=True):
            key = self.space.key(state)
            if score.failure is None:
                self._timed.setdefault(key, state)
            elif key not in self._timed:
                self._failed.add(key)

    def _settle_on_best(self) -> None:
        states = [self.best, *self._timed.values()]
        saved, _ = self._regression.difference(states, self.best)
        self._settle_on(states[int(np.argmax(np.round(saved, _DIGITS)))])

    def _settle_on(self, state: State) -> None:
        self.best = state
        self.gain = -math.log(self._regression.latency(state)) if state else 0.0
