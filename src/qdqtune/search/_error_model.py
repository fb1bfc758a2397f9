"""Estimate the output error of a choice from the errors of others.

Rounding errors of different ops are nearly independent, so that their powers add up: the noise of a
choice is about the sum of what each of its groups adds. These parts are fitted to what was
measured, such as groups quantized alone, or whole candidates of a search. Where errors amplify each
other, a whole has many times the noise of its parts: by how much is taken from the measured choices
that have most in common with the one in question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from qdqtune.search._space import Space, State

# How much the assumption that all groups are alike counts beside a measurement.
_PRIOR = 1e-3
_STEPS = 300
# How much more a measured choice counts for one that has more groups in common with it.
_NEARNESS = 4
_LEAST_NOISE, _MOST_NOISE = 1e-12, 1e3


def noise_of(sqnr_db: float) -> float:
    """Return the noise power relative to the signal, within limits that can be computed with."""
    decibels = min(max(sqnr_db, -1e3), 1e3) if not math.isnan(sqnr_db) else -1e3
    return min(max(math.pow(10.0, -decibels / 10.0), _LEAST_NOISE), _MOST_NOISE)


class ErrorModel:
    """The noise that each group adds to the worst output.

    Args:
        space: The search space.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self._measured: dict[State, float] = {}
        self._noise: npt.NDArray[np.float64] | None = None
        self._beyond: dict[State, float] = {}

    def observe(self, found: Mapping[State, float]) -> None:
        """Take in measurements.

        Args:
            found: SQNR of the worst output in dB, by choice.
        """
        for state, sqnr_db in found.items():
            if closed := self._space.closed(state):  # ops that only move values need others
                self._measured[closed] = noise_of(sqnr_db)
        self._noise = None

    def sqnr_db(self, state: State) -> float:
        """Return the SQNR of a choice: as measured, or else as estimated.

        Args:
            state: The choice; float is infinitely accurate.
        """
        closed = self._space.closed(state)
        if not closed:
            return math.inf
        if closed in self._measured:
            return -10.0 * math.log10(self._measured[closed])
        return self.estimated_db(closed)

    def estimated_db(self, state: State) -> float:
        """Return the estimate, whether or not the choice was measured.

        Args:
            state: The choice.
        """
        if self._noise is None:
            self._noise = self._fitted()
            self._beyond = {
                known: math.log(noise / self._sum(known)) for known, noise in self._measured.items()
            }
        closed = self._space.closed(state)
        noise = self._sum(closed) * math.exp(self._deviation(closed))
        return -10.0 * math.log10(max(noise, _LEAST_NOISE))

    def _sum(self, closed: State) -> float:
        assert self._noise is not None
        return float(self._noise[sorted(closed)].sum())

    def _deviation(self, state: State) -> float:
        """Return the log of how much more noise a choice has than the sum of its parts."""
        weights = {
            known: (len(known & state) / len(known | state)) ** _NEARNESS for known in self._beyond
        }
        total = sum(weights.values())
        return (
            sum(w * self._beyond[known] for known, w in weights.items()) / total if total else 0.0
        )

    def _fitted(self) -> npt.NDArray[np.float64]:
        """Return the noise of each group: the nearest to the measurements, and never negative.

        Every measurement counts by its relative deviation, and what none tells apart is shared
        equally. Multiplicative steps can't leave the positive numbers.
        """
        count = len(self._space.groups)
        if not self._measured:
            return np.full(count, 1.0 / max(1, count))
        shares = [noise / len(state) for state, noise in self._measured.items()]
        typical = math.exp(sum(map(math.log, shares)) / len(shares))
        share, most = np.full(count, math.inf), np.full(count, math.inf)
        rows = np.zeros((len(self._measured), count))
        for row, (state, noise) in zip(rows, self._measured.items(), strict=True):
            numbers = sorted(state)
            row[numbers] = 1.0 / noise
            share[numbers] = np.minimum(share[numbers], noise / len(state))
            most[numbers] = np.minimum(most[numbers], noise)
        share, most = (np.where(np.isinf(each), typical, each) for each in (share, most))
        weights = math.sqrt(_PRIOR) / most
        matrix = np.vstack([rows, np.diag(weights)])
        target = np.concatenate([np.ones(len(rows)), weights * share])
        found, wanted = share, matrix.T @ target
        for _ in range(_STEPS):
            found = found * wanted / (matrix.T @ (matrix @ found))
        return found
