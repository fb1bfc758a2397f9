"""How often values of a tensor occur, counted as they come by: none is kept, none is lost.

Bins are as wide as a power of two and begin at multiples of that, so that zero is an edge between
two of them. When a value does not fit, the width doubles and bins are merged in pairs. All of that
is exact: the counts depend on the values, not on their order or on how they were divided.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

BINS = 2048
"""Bins on each side of zero.

A format of 255 steps is tried on an eighth of the range, too, and its steps are not to be finer
than bins.
"""


class Histogram:
    """Counts of values; see the module.

    Attributes:
        zeros: How many were exactly zero: they are in no bin, as every format can write them.
    """

    def __init__(self) -> None:
        self.zeros = 0
        self._exponent: int | None = None
        self._counts = np.zeros(2 * BINS, np.int64)

    def add(self, values: npt.NDArray[np.float32]) -> None:
        """Count values in; what is infinite or undefined doesn't count."""
        flat = values.reshape(-1)
        if not np.isfinite(flat).all():
            flat = flat[np.isfinite(flat)]
        zeros = flat.size - int(np.count_nonzero(flat))
        self.zeros += zeros
        if zeros == flat.size:
            return
        exponent = self._make_room(max(-float(flat.min()), float(flat.max())))
        scaled = flat.astype(np.float64) * math.ldexp(1.0, -exponent)
        bins = np.floor(scaled).astype(np.int64) + BINS
        self._counts += np.bincount(bins, minlength=2 * BINS)
        self._counts[BINS] -= zeros

    @property
    def size(self) -> int:
        """How many values were counted, zeros included."""
        return self.zeros + int(self._counts.sum())

    @property
    def width(self) -> float:
        """How wide a bin is; 0 if nothing but zeros was counted."""
        return 0.0 if self._exponent is None else math.ldexp(1.0, self._exponent)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """A copy of the counts: bin `n` is from `n - BINS` to `n - BINS + 1` times the width."""
        return np.array(self._counts)

    def _make_room(self, magnitude: float) -> int:
        """Widen the bins until this fits; returns the exponent of their width."""
        _, above = math.frexp(magnitude)
        exponent = above - (BINS.bit_length() - 1)
        if self._exponent is None:
            self._exponent = exponent
        elif exponent > self._exponent:
            # More than 63 doublings leave of any bin its sign.
            merged = np.arange(-BINS, BINS) >> min(exponent - self._exponent, 63)
            counts, self._counts = self._counts, np.zeros(2 * BINS, np.int64)
            np.add.at(self._counts, merged + BINS, counts)
            self._exponent = exponent
        return self._exponent
