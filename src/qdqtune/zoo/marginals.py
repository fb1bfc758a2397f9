"""What is known about a value without running the model: its distribution, channel by channel.

BatchNorm statistics must fit what flows in, and no engine runs at build time. So every value
has an estimate: a few equally likely values per channel. Random weights make channels and
neighbouring positions nearly uncorrelated, so what is summed is taken as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from qdqtune.zoo.weights import Float32s, Float64s

Elementwise = Callable[[Float64s], Float64s]

_POINTS = 32
_RANKS = (np.arange(_POINTS) + 0.5) / _POINTS
_NORMAL_POINTS = np.array([NormalDist().inv_cdf(rank) for rank in _RANKS])
_NORMAL_POINTS /= _NORMAL_POINTS.std()
# Eight ways to pair the points of two independent values; each point meets eight others.
_PAIRINGS = [(np.arange(_POINTS) * 13 + 4 * shift) % _POINTS for shift in range(8)]


def relu(x: Float64s) -> Float64s:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def relu6(x: Float64s) -> Float64s:
    """Clips to 0…6."""
    return np.clip(x, 0.0, 6.0)


def sigmoid(x: Float64s) -> Float64s:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: Float64s) -> Float64s:
    """SiLU: x · sigmoid(x)."""
    return x * sigmoid(x)


def gelu(x: Float64s) -> Float64s:
    """GELU, in its tanh form: an estimate needs no better."""
    return 0.5 * x * (1.0 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))


@dataclass(frozen=True)
class Marginal:
    """The distribution of a value.

    Attributes:
        points: Per channel, equally likely values in ascending order. One row where channels are
            not told apart.
    """

    points: Float64s

    @classmethod
    def normal(cls, mean: Float64s | Float32s | float, var: Float64s | float) -> Marginal:
        """Builds normal distributions from means and variances."""
        centre = np.atleast_1d(np.asarray(mean, np.float64))
        return cls(centre[:, None] + np.sqrt(np.atleast_1d(var))[:, None] * _NORMAL_POINTS)

    @cached_property
    def moments(self) -> tuple[Float64s, Float64s]:
        """Mean and variance, per channel."""
        return self.points.mean(axis=1), self.points.var(axis=1)

    @property
    def mean_square(self) -> float:
        """The mean of the squared values, over all channels."""
        return float(np.mean(self.points**2))

    def through(self, activation: Elementwise) -> Marginal:
        """After an elementwise function."""
        return Marginal(np.sort(activation(self.points), axis=1))

    def scaled(self, factors: Float64s) -> Marginal:
        """After a multiplication of each channel by a positive factor of its own."""
        return Marginal(self.points * factors[:, None])

    def plus(self, other: Marginal) -> Marginal:
        """The sum of two independent values."""
        sums = np.concatenate([self.points + other.points[:, pairs] for pairs in _PAIRINGS], axis=1)
        points = np.sort(sums, axis=1).reshape(len(sums), _POINTS, -1).mean(axis=2)
        # Pairing a part of all pairs and averaging neighbours lose a little of the spread.
        (mean, var), (other_mean, other_var) = self.moments, other.moments
        centre = points.mean(axis=1, keepdims=True)
        stretch = np.sqrt((var + other_var) / points.var(axis=1))
        return Marginal((points - centre) * stretch[:, None] + (mean + other_mean)[:, None])

    def average_of(self, count: int) -> Marginal:
        """The average over `count` positions."""
        mean, var = self.moments
        return Marginal.normal(mean, var / count)

    def largest_of(self, count: int) -> Marginal:
        """The largest of `count` positions."""
        positions = _RANKS ** (1.0 / count) * _POINTS - 0.5
        low = np.clip(np.floor(positions).astype(int), 0, _POINTS - 2)
        share = positions - low
        return Marginal(self.points[:, low] * (1 - share) + self.points[:, low + 1] * share)

    def channels(self, first: int, last: int) -> Marginal:
        """The channels from `first` up to, not including, `last`."""
        return Marginal(self.points[first:last])

    def shuffled(self, groups: int) -> Marginal:
        """The channels in the order of a channel shuffle."""
        return Marginal(self.points[np.arange(len(self.points)).reshape(groups, -1).T.ravel()])


def concatenated(marginals: Sequence[Marginal]) -> Marginal:
    """The channels of several values, one after the other."""
    return Marginal(np.concatenate([marginal.points for marginal in marginals]))
