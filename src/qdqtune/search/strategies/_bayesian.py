"""Bayesian search among few choices: the candidates with the largest expected improvement first.

What a choice saves, as a part of the float model's latency, is thought of as a sum: what each group
saves when it is quantized, less what each boundary between a quantized and a float neighbour costs,
and a little that is the choice's own and that it shares with choices like it. Before anything is
measured, groups are expected to save something in proportion to their share of the latency, alike
for ops of one type and of one pattern, and boundaries to cost some. Measurements, each a noisy
difference of two choices, change that by the rules of normal distributions: this is regression with
a Gaussian prior. A gain that was measured against an older incumbent, or in a flip of many groups
at once, counts as much as any other; a lucky one among many is shrunk towards what is expected.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtune.search._prior import Prior
from qdqtune.search._space import Space, State
from qdqtune.search.strategies._strategy import (
    NOTHING,
    SEEDS,
    Effort,
    Score,
    SearchTask,
    SteppedStrategy,
    Steps,
    Trial,
)

Floats = npt.NDArray[np.float64]

# Deviations of what is expected, as parts of the share of latency that is at stake.
_ALL_ALIKE = 0.3
_OPS_ALIKE = 0.3
_PATTERN_ALIKE = 0.15
_OF_GROUP = 0.8
_OF_BOUNDARY = 0.5
_BOUNDARY_COSTS = 0.1
# Where the shares say that little is at stake, they may be wrong, and boundaries cost all the same:
# parts of the float model's latency.
_LEAST_SHARE = 0.02
_LEAST_BOUNDARY = 0.015
# What remains unsure of a group whose gain is known from elsewhere.
_LEAST_DOUBT = 0.05
# All of them may be twice as large, and what is a choice's own is this or that: what was measured
# decides. Choices share half of it when they differ in four groups.
_SCALES = (1.0, 2.0)
_OWN = (0.005, 0.01, 0.02, 0.04)
_USUAL_OWN = 0.01
_REACH = 6.0
# Two opens of one file differ by this much.
_OPEN_ERROR = 0.003
# Errors from few blocks are themselves uncertain, and too small more often than too large.
_ERROR_FACTOR = 1.3
# Candidates of one trial are compared with the same blocks of the reference.
_SHARED_ERROR = 0.4
_FAILED_SAVING, _FAILED_ERROR = -0.5, 0.2
_IMAGINED_ERROR = 0.01
_LEAST_LATENCY = 0.02


@dataclass(frozen=True)
class _Observed:
    """A measured difference: what a candidate saves, as a part of the float model's latency."""

    candidate: State
    reference: State
    saved: float
    error: float
    trial: int


@dataclass(frozen=True)
class _Found:
    """What follows from the observations: rows are observed choices, or differences of them."""

    features: Floats
    signs: Floats
    kernel: Floats
    weights: Floats
    scale: float
    own: float


class BayesianLinearModel:
    """What is known and guessed about the choices of a space.

    Args:
        space: The choices.
        prior: What a pattern cache knows of them.
    """

    def __init__(self, space: Space, prior: Prior | None = None) -> None:
        self._count = len(space.groups)
        self.pairs = space.pairs
        self._first = np.array([i for i, _ in self.pairs], dtype=np.intp)
        self._second = np.array([j for _, j in self.pairs], dtype=np.intp)
        stakes = np.array(space.potential, dtype=np.float64)
        even = 1.0 / max(1, self._count)
        stakes = np.maximum(stakes, _LEAST_SHARE) if stakes.any() else stakes + even
        at_boundary = (stakes[self._first] + stakes[self._second]) / 2.0
        self._alike, alike = _alike(space, stakes)
        deviations = (
            alike,
            _OF_GROUP * stakes,
            np.hypot(_OF_BOUNDARY * at_boundary, _LEAST_BOUNDARY),
        )
        self._variances: Floats = np.concatenate(deviations) ** 2
        costs = -_BOUNDARY_COSTS * at_boundary
        self._expected: Floats = np.concatenate((np.zeros(len(alike) + self._count), costs))
        for number, estimate in (prior.of(space) if prior is not None else {}).items():
            if estimate.gain is not None and estimate.is_same:  # others say nothing of it
                self._alike[:, number] = 0.0
                self._expected[len(alike) + number] = estimate.gain * space.potential[number]
                error = max(_LEAST_DOUBT, estimate.error) * stakes[number]
                self._variances[len(alike) + number] = error**2
        self._observed: list[_Observed] = []
        self._trials = 0
        self._widths = tuple(itertools.product(_SCALES, _OWN))
        self._solved: _Found | None = None

    def learn(self, reference: State, candidates: Sequence[State], scores: Sequence[Score]) -> None:
        """Take in the outcome of a trial."""
        self._trials += 1
        errors = [score.error for score in scores if score.failure is None]
        usual = statistics.median(errors) if errors else 0.0
        level = self.latency(reference)
        for state, score in zip(candidates, scores, strict=True):
            saved, error = _FAILED_SAVING, _FAILED_ERROR
            if score.failure is None:
                latency = level * math.exp(-score.gain)
                saved = level - latency
                error = math.hypot(_ERROR_FACTOR * max(score.error, usual), _OPEN_ERROR) * latency
            self._observed.append(_Observed(state, reference, saved, error, self._trials))
        self._solved = None

    def imagining(self, reference: State, state: State) -> BayesianLinearModel:
        """The posterior after a measurement that comes out as expected."""
        (saved,), _ = self.difference([state], reference)
        found = self._solve()
        other = copy.copy(self)
        other._widths = ((found.scale, found.own),)
        imagined = _Observed(state, reference, float(saved), _IMAGINED_ERROR, -1)
        other._observed = [*self._observed, imagined]
        other._solved = None
        return other

    def latency(self, state: State) -> float:
        """Expected latency of a choice, that of the float model being 1."""
        (saved,), _ = self.difference([state], frozenset())
        return max(_LEAST_LATENCY, 1.0 - float(saved))

    def difference(self, states: Sequence[State], reference: State) -> tuple[Floats, Floats]:
        """Expected saving of choices over another, and its deviation; the float model takes 1."""
        every = [*states, reference]
        features = self._features(every)
        found = self._solve()
        prior = self._covariance(features, features, found)
        mean = features @ self._expected
        if self._observed:
            cross = self._covariance(features, found.features, found) @ found.signs.T
            mean = mean + cross @ found.weights
            prior = prior - cross @ np.linalg.solve(found.kernel, cross.T)
        variance = np.diag(prior)[:-1] + prior[-1, -1] - 2.0 * prior[:-1, -1]
        return mean[:-1] - mean[-1], np.sqrt(np.maximum(variance, 1e-12))

    def effects(self, generator: np.random.Generator | None = None) -> tuple[Floats, Floats]:
        """What each group brings and each boundary costs: expected, or one possible world.

        Args:
            generator: Draws the world; the expectation without it.
        """
        found = self._solve()
        variances = found.scale**2 * self._variances
        effects = self._expected
        if generator is not None:
            effects = effects + np.sqrt(variances) * generator.standard_normal(len(effects))
        if self._observed:
            design = found.signs @ found.features
            seen = np.array([one.saved for one in self._observed])
            if generator is not None:
                rest = found.kernel - (design * variances) @ design.T
                lower = np.linalg.cholesky(rest + 1e-12 * np.eye(len(rest)))
                seen = seen + lower @ generator.standard_normal(len(seen))
            missing = np.linalg.solve(found.kernel, seen - design @ effects)
            effects = effects + variances * (design.T @ missing)
        alike = effects[: len(self._alike)]
        of_groups = effects[len(alike) : len(alike) + self._count] + alike @ self._alike
        return of_groups, effects[len(alike) + self._count :]

    def _solve(self) -> _Found:
        if self._solved is None:
            every = [state for one in self._observed for state in (one.candidate, one.reference)]
            known = list(dict.fromkeys(every))
            features = self._features(known)
            signs = self._signs(known)
            errors = np.array([one.error for one in self._observed])
            trials = np.array([one.trial for one in self._observed])
            shared = _SHARED_ERROR * (trials[:, None] == trials[None, :])
            np.fill_diagonal(shared, 1.0)
            noise = shared * np.outer(errors, errors)
            seen = np.array([one.saved for one in self._observed])
            missing = seen - signs @ (features @ self._expected)
            linear = signs @ ((features * self._variances) @ features.T) @ signs.T
            likeness = signs @ self._likeness(features, features) @ signs.T
            best = -np.inf
            for scale, own in self._widths:
                kernel = scale**2 * linear + own**2 * likeness + noise
                weights = np.linalg.solve(kernel, missing)
                fit = -0.5 * (missing @ weights + np.linalg.slogdet(kernel)[1])
                fit -= 0.5 * np.log(scale) ** 2 + 0.25 * np.log(own / _USUAL_OWN) ** 2
                if fit > best:
                    best = fit
                    self._solved = _Found(features, signs, kernel, weights, scale, own)
            assert self._solved is not None
        return self._solved

    def _covariance(self, left: Floats, right: Floats, found: _Found) -> Floats:
        result: Floats = found.scale**2 * ((left * self._variances) @ right.T)
        result += found.own**2 * self._likeness(left, right)
        return result

    def _likeness(self, left: Floats, right: Floats) -> Floats:
        """How much of what is their own two choices share: the less, the more groups differ."""
        bits = slice(len(self._alike), len(self._alike) + self._count)
        one, other = left[:, bits], right[:, bits]
        apart = one.sum(axis=1)[:, None] + other.sum(axis=1)[None, :] - 2.0 * one @ other.T
        result: Floats = np.exp(-apart / _REACH)
        return result

    def _signs(self, known: list[State]) -> Floats:
        place = {state: number for number, state in enumerate(known)}
        rows = np.zeros((len(self._observed), len(known)))
        for number, one in enumerate(self._observed):
            rows[number, place[one.candidate]] += 1.0
            rows[number, place[one.reference]] -= 1.0
        return rows

    def _features(self, states: Sequence[State]) -> Floats:
        bits = np.zeros((len(states), self._count))
        for row, state in enumerate(states):
            bits[row, list(state)] = 1.0
        boundaries = np.abs(bits[:, self._first] - bits[:, self._second])
        return np.concatenate((bits @ self._alike.T, bits, boundaries), axis=1)


def _alike(space: Space, stakes: Floats) -> tuple[Floats, Floats]:
    """Rows of groups that are expected to be alike, weighted by stakes, and how much they vary."""
    sets: list[tuple[float, Sequence[int]]] = [(_ALL_ALIKE, range(len(stakes)))]
    by_op = space.by(lambda group: group.op_type)
    sets += [(_OPS_ALIKE, numbers) for numbers in by_op.values() if len(numbers) > 1]
    sets += [(_PATTERN_ALIKE, numbers) for numbers in space.patterns.values() if len(numbers) > 1]
    rows = np.zeros((len(sets), len(stakes)))
    for row, (_, numbers) in enumerate(sets):
        rows[row, list(numbers)] = stakes[list(numbers)]
    return rows, np.array([deviation for deviation, _ in sets])


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
        best = [
            space.with_one_form(ascend(start, effects, regression.pairs), effects[0].tolist())
            for start in starts
        ]
        found.append(max(best, key=lambda state: value_of(state, effects, regression.pairs)))
    flips = [frozenset({number}) for number in range(len(space.groups))]
    flips += map(frozenset, regression.pairs)
    for numbers in space.patterns.values():
        flips += (frozenset(numbers) - incumbent, incumbent.intersection(numbers))
    found += (space.switched(incumbent, flip) for flip in flips)
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
        self._regression = BayesianLinearModel(self.space, task.prior)
        self._timed: dict[str, State] = {self.space.key(NOTHING): NOTHING}
        self._failed: set[str] = set()

    def steps(self) -> Steps:
        """Everything it asks, one trial after the other."""
        if not self.space.groups:
            return
        yield from self._compare_with_best(self._seeds, Effort.CONFIRM, SEEDS)
        float_key = self.space.key(NOTHING)
        keys = {s: (float_key, self.space.key(s), Effort.CONFIRM) for s in self._seeds}
        seeds = {s: self._known[key] for s, key in keys.items() if key in self._known}
        if (yield from self._is_as_expected(seeds)):
            yield from self._explore(self.limits.at_once * self.limits.sweeps)
        else:
            yield from self._explore(_IDLE_PER_SWEEP * self.limits.sweeps * len(self.space.groups))
        yield from self._compare_with_rivals()
        yield from self._drop_what_does_not_pay()
        self.is_cut_short |= not self._room

    def _explore(self, patience: int) -> Steps:
        idle = 0
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
        while short and len(chosen) < min(room, self.limits.at_once):
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
        starts = dict.fromkeys((self.best, NOTHING, self.space.everything, *self._seeds))
        pool = proposals(self.space, self._regression, list(starts), self._generator)
        pool += [state for state in self._timed.values() if state not in pool]
        pool = list(filter(self.task.allows, pool))
        if not pool:
            return []
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
            timed = [self.best, *self._timed.values()]
            saved, _ = self._regression.difference(timed, self.best)
            self._settle_on(timed[int(np.argmax(np.round(saved, _DIGITS)))])

    def _learn(self, trial: Trial, scores: Sequence[Score]) -> None:
        self._regression.learn(trial.reference, trial.candidates, scores)
        for state, score in zip(trial.candidates, scores, strict=True):
            key = self.space.key(state)
            if score.failure is None:
                self._timed.setdefault(key, state)
            elif key not in self._timed:
                self._failed.add(key)

    def _settle_on(self, state: State) -> None:
        self.best = state
        self.gain = -math.log(self._regression.latency(state)) if state else 0.0
