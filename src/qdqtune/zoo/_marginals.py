"""Seeded weights, and the estimated distribution of a value, channel by channel."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

_KEPT_BITS = 16
_LANES = np.uint64(0x0000_FFFF_0000_FFFF)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_SUM_MEAN = 4 * (2**16 - 1) // 2
# The standard deviation of the logarithm of a channel's magnitude.
_SPREAD = 0.3
_SUM_STD = float(np.sqrt(4 * (2**32 - 1) / 12))


def rounded(values: Float64s) -> Float32s:
    """Rounds to 16 significant bits, so that the last bits of float64 arithmetic don't matter."""
    fraction, exponent = np.frexp(values)
    grid = 2.0**_KEPT_BITS
    return np.ldexp(np.round(fraction * grid) / grid, exponent).astype(np.float32)


class SeededWeights:
    """Draws tensors; each depends on the seed and on its own name, not on the order of the draws.

    Args:
        seed: Any integer from 0 on.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        *,
        std: float = 1.0,
        centre: float = 0.0,
        channel_axis: int | None = None,
    ) -> Float32s:
        """Draws bell-shaped values.

        Args:
            name: The tensor's name.
            shape: Its shape.
            std: The root mean square of their distances from the centre.
            centre: Their mean.
            channel_axis: The axis along which magnitudes differ, as they do in trained models.
        """
        draws = self._bell(name, shape)
        if channel_axis is None:
            factor = rounded(np.full(1, std / _SUM_STD))
        else:
            magnitudes = self.positive(
                f"{name}/magnitude", shape[channel_axis], size=std / _SUM_STD
            )
            along = [1] * len(shape)
            along[channel_axis] = -1
            factor = magnitudes.reshape(along)
        values: Float32s = draws * factor + rounded(np.full(1, centre))
        return values

    def positive(self, name: str, channels: int, *, size: float) -> Float32s:
        """Draws positive factors, log-normal, with root mean square `size`."""
        logarithms = self._bell(name, (channels,)).astype(np.float64) * (_SPREAD / _SUM_STD)
        # E[exp(2z)] = exp(2 spread²): divided out, the root mean square is `size`.
        return rounded(size * np.exp(logarithms - _SPREAD**2))

    def _bell(self, name: str, shape: Sequence[int]) -> Float32s:
        """Sums of four uniform 16-bit integers, centred: whole numbers, exact in float32."""
        source = np.random.SeedSequence([self._seed, zlib.crc32(name.encode())])
        raw = np.random.PCG64(source).random_raw(int(np.prod(shape)))
        pairs = (raw & _LANES) + ((raw >> np.uint64(16)) & _LANES)
        sums = (pairs & _LOW_HALF) + (pairs >> np.uint64(32))
        bell: Float32s = sums.astype(np.float32) - np.float32(_SUM_MEAN)
        return bell.reshape(tuple(shape))


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
