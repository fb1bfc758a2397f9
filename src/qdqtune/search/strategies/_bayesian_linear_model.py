"""A Bayesian linear model of what every choice saves, measured or not.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qdqtune.search._space import Space, State
from qdqtune.search.strategies._strategy import Score

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
    """

    def __init__(self, space: Space) -> None:
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
    by_op: dict[str, list[int]] = {}
    for number, group in enumerate(space.groups):
        by_op.setdefault(group.op_type, []).append(number)
    sets += [(_OPS_ALIKE, numbers) for numbers in by_op.values() if len(numbers) > 1]
    patterns = [numbers for numbers in space.patterns.values() if len(numbers) > 1]
    sets += [(_PATTERN_ALIKE, numbers) for numbers in patterns]
    rows = np.zeros((len(sets), len(stakes)))
    for row, (_, numbers) in enumerate(sets):
        rows[row, list(numbers)] = stakes[list(numbers)]
    return rows, np.array([deviation for deviation, _ in sets])
