"""Seeded weights: the same bytes for the same seed, on every machine.

Only the raw stream of a bit generator is promised to stay the same across numpy versions, and only
integer and single IEEE operations across processors. So a draw is a sum of 16-bit integers times
one factor; whatever needs a sum or an `exp` is computed in float64 and passes through `rounded`,
whose grid is so coarse that a difference in the last bits vanishes.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

_KEPT_BITS = 16
_LANES = np.uint64(0x0000_FFFF_0000_FFFF)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_SUM_MEAN = 4 * (2**16 - 1) // 2
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
        channel_spread: float = 0.3,
    ) -> Float32s:
        """Draws bell-shaped values.

        Args:
            name: The tensor's name.
            shape: Its shape.
            std: The root mean square of their distances from the centre.
            centre: Their mean.
            channel_axis: The axis along which magnitudes differ, as they do in trained models.
            channel_spread: The standard deviation of the logarithm of a channel's magnitude.
        """
        draws = self._bell(name, shape)
        if channel_axis is None:
            factor = rounded(np.full(1, std / _SUM_STD))
        else:
            magnitudes = self._log_normal(
                f"{name}/magnitude", shape[channel_axis], channel_spread, std / _SUM_STD
            )
            along = [1] * len(shape)
            along[channel_axis] = -1
            factor = magnitudes.reshape(along)
        values: Float32s = draws * factor + rounded(np.full(1, centre))
        return values

    def positive(self, name: str, channels: int, *, size: float, spread: float = 0.3) -> Float32s:
        """Draws positive factors, log-normal, with root mean square `size`."""
        return self._log_normal(name, channels, spread, size)

    def _log_normal(self, name: str, channels: int, spread: float, size: float) -> Float32s:
        logarithms = self._bell(name, (channels,)).astype(np.float64) * (spread / _SUM_STD)
        # E[exp(2z)] = exp(2 spread²): divided out, the root mean square is `size`.
        return rounded(size * np.exp(logarithms - spread**2))

    def _bell(self, name: str, shape: Sequence[int]) -> Float32s:
        """Sums of four uniform 16-bit integers, centred: whole numbers, exact in float32."""
        source = np.random.SeedSequence([self._seed, zlib.crc32(name.encode())])
        raw = np.random.PCG64(source).random_raw(int(np.prod(shape)))
        pairs = (raw & _LANES) + ((raw >> np.uint64(16)) & _LANES)
        sums = (pairs & _LOW_HALF) + (pairs >> np.uint64(32))
        bell: Float32s = sums.astype(np.float32) - np.float32(_SUM_MEAN)
        return bell.reshape(tuple(shape))
