"""Histograms of tensors, and the range in which a number format fits a histogram best."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from qdqtune.qdq._encoding import Array, TensorFormat

BINS = 2048
"""Bins on each side of zero.

A format of 255 steps is also tried on an eighth of the range, where its steps must not be finer
than bins.
"""

Range = tuple[float, float]

# Fractions of the whole range to try. Below an eighth, steps would be finer than bins.
_FACTORS = np.linspace(1.0, 0.125, 36)

# The fraction of values that may be cut off at each end.
_RARE = 1e-4

# With fewer values than this, a histogram is too random to show what is typical.
_FEW = 128

# Smoothing for empty steps of the quantized distribution, so that their logarithm is finite.
_SMOOTHING = 1e-4


class Histogram:
    """Counts of values; see `BINS`.

    Attributes:
        zeros: Number of exact zeros: they are in no bin, since every format can represent them.
    """

    def __init__(self) -> None:
        self.zeros = 0
        self._exponent: int | None = None
        self._counts = np.zeros(2 * BINS, np.int64)

    def add(self, values: npt.NDArray[np.float32]) -> None:
        """Count values; infinite and undefined ones are ignored."""
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
        """The number of values counted, including zeros."""
        return self.zeros + int(self._counts.sum())

    @property
    def width(self) -> float:
        """The width of a bin; 0 if nothing but zeros was counted."""
        return 0.0 if self._exponent is None else math.ldexp(1.0, self._exponent)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """A copy of the counts: bin `n` is from `n - BINS` to `n - BINS + 1` times the width."""
        return np.array(self._counts)

    def _make_room(self, magnitude: float) -> int:
        """Widen the bins until this magnitude fits; returns the exponent of their width."""
        _, above = math.frexp(magnitude)
        exponent = above - (BINS.bit_length() - 1)
        if self._exponent is None:
            self._exponent = exponent
        elif exponent > self._exponent:
            # After more than 63 doublings, only the sign of a bin is left.
            merged = np.arange(-BINS, BINS) >> min(exponent - self._exponent, 63)
            counts, self._counts = self._counts, np.zeros(2 * BINS, np.int64)
            np.add.at(self._counts, merged + BINS, counts)
            self._exponent = exponent
        return self._exponent


def frequent_range(seen: Histogram, whole: Range) -> Range:
    """Return the range that excludes one in ten thousand values at each end."""
    counts = seen.counts
    counts[BINS] += seen.zeros
    running = np.cumsum(counts)
    spared = int(running[-1] * _RARE)
    if not spared:
        return whole
    first = int(np.searchsorted(running, spared, side="right"))
    last = int(np.searchsorted(running, running[-1] - spared, side="left"))
    if first == last:  # nearly all of them are the same number
        return whole
    # Values are assumed to be evenly distributed within a bin.
    at_low = first + float((spared - running[first] + counts[first]) / counts[first])
    at_high = last + 1 - float((running[last] - running[-1] + spared) / counts[last])
    return _within(((at_low - BINS) * seen.width, (at_high - BINS) * seen.width), whole)


def least_error_range(seen: Histogram, whole: Range, layout: TensorFormat) -> Range:
    """Return the range with the least mean squared quantization error."""
    return _least(_squared_errors, seen, whole, layout)


def least_divergence_range(seen: Histogram, whole: Range, layout: TensorFormat) -> Range:
    """Return the range whose quantized values are distributed most like the real ones.

    The measure is the Kullback-Leibler divergence. Values that are cut off count at the ends of the
    real distribution, and are missing in the quantized one.
    """
    return _least(_divergences, seen, whole, layout)


def _least(
    cost: Callable[[Array, Array, Array], Array],
    seen: Histogram,
    whole: Range,
    layout: TensorFormat,
) -> Range:
    """Return the range of least cost: both ends are moved in together, then each alone.

    Args:
        cost: Takes the counts, and the steps of some ranges as `_lay_steps` returns them.
        seen: The histogram.
        whole: The whole range.
        layout: The format.
    """
    counts = seen.counts.astype(np.float64)
    if whole[0] >= whole[1] or counts.sum() < _FEW:
        return whole
    low, high = min(whole[0], 0.0) / seen.width, max(whole[1], 0.0) / seen.width

    def best(lows: Array, highs: Array) -> tuple[float, float]:
        costs = cost(counts, *_lay_steps(lows, highs, layout))
        # Of candidates that are equal except for rounding, the widest: don't clip without a gain.
        least = int(np.argmax(costs <= costs.min() * (1.0 + 1e-9) + 1e-9))
        return float(lows[least]), float(highs[least])

    drawn_in, kept = _FACTORS, np.ones_like(_FACTORS)
    if layout.symmetric:
        reach = max(-low, high)
        found = best(-reach * drawn_in, reach * drawn_in)
    else:
        found = best(low * drawn_in, high * drawn_in)
        if low < 0.0 < high:
            found = best(found[0] * kept, high * drawn_in)
            found = best(low * drawn_in, found[1] * kept)
    return _within((found[0] * seen.width, found[1] * seen.width), whole)


def _lay_steps(lows: Array, highs: Array, layout: TensorFormat) -> tuple[Array, Array]:
    """Return the steps of ranges around zero, as in `encode_range`, in units of a bin's width.

    Returns:
        Per range, a row of the positions of its steps, and a row with the first bin that is nearest
        to each step, plus the first bin behind the last step.
    """
    if layout.symmetric:
        scales = highs / (layout.high - layout.center)
        middle = np.full_like(scales, layout.center)
    else:
        scales = (highs - lows) / (layout.high - layout.low)
        middle = np.minimum(layout.low + np.rint(-lows / scales), layout.high)
    steps = np.arange(layout.low, layout.high + 2) - middle[:, None]
    # The center of a bin is half its width after its start.
    first = np.ceil((steps - 0.5) * scales[:, None] - 0.5)
    edges = np.clip(first, -BINS, BINS).astype(np.int64) + BINS
    return steps[:, :-1] * scales[:, None], edges


def _squared_errors(counts: Array, levels: Array, edges: Array) -> Array:
    edges = edges.copy()
    edges[:, 0], edges[:, -1] = 0, 2 * BINS  # values beyond the ends go to the outermost steps
    centers = np.arange(-BINS, BINS) + 0.5  # the assumed position of a bin's values
    powers = (counts, counts * centers, counts * centers * centers)
    count, first, second = (np.diff(_before(each)[edges], axis=1) for each in powers)
    errors = second - 2.0 * levels * first + levels**2 * count
    return np.asarray(errors.sum(axis=1))


def _divergences(counts: Array, _levels: Array, edges: Array) -> Array:
    """Return the divergence of the quantized distributions; infinite if everything is cut off.

    Within a step, the quantized distribution is even over the non-empty bins. Values that are cut
    off are added to the outermost bins that remain.
    """
    costs = np.full(len(edges), np.inf)
    filled = counts > 0
    edges = _before(filled).astype(np.int64)[edges]
    usable = edges[:, 0] < edges[:, -1]
    costs[usable] = _finite_divergences(counts[filled] / counts.sum(), edges[usable])
    return costs


def _finite_divergences(shares: Array, edges: Array) -> Array:
    """Return the divergences, given only non-empty bins."""
    running = _before(shares)
    first, behind = edges[:, 0], edges[:, -1]
    kept, held = np.diff(running[edges], axis=1), np.diff(edges, axis=1)
    left, total = running[behind] - running[first], behind - first
    even = kept / np.maximum(held, 1) / left[:, None]
    even = (1.0 - _SMOOTHING) * even + _SMOOTHING / total[:, None]
    # The sum of p log p, minus that of p log q, for real shares p and quantized ones q.
    own = np.diff(_before(_entropy(shares))[edges[:, [0, -1]]], axis=1)[:, 0]
    crossed = (kept * np.log(even)).sum(axis=1)
    rows = np.arange(len(edges))
    is_filled = held > 0
    ends = (
        (first, running[first], is_filled.argmax(axis=1)),
        (behind - 1, running[-1] - running[behind], -1 - is_filled[:, ::-1].argmax(axis=1)),
    )
    for outermost, cut, step in ends:
        own += _entropy(shares[outermost] + cut) - _entropy(shares[outermost])
        crossed += cut * np.log(even[rows, step])
    return np.asarray(own - crossed)


def _entropy(shares: Array) -> Array:
    return np.asarray(shares * np.log(shares))


def _before(values: Array) -> Array:
    """Return the sum of all values before each one, and the sum of all."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _within(found: Range, whole: Range) -> Range:
    """Clip a range to the whole one, and include zero if that does."""
    low, high = whole
    if low <= 0.0 <= high:
        found = min(found[0], 0.0), max(found[1], 0.0)
    inside = max(found[0], low), min(found[1], high)
    return inside if inside[0] < inside[1] else whole
