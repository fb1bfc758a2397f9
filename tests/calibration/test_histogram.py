"""Counting values as they come by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.calibration._range_fitting import BINS, Histogram

SINGLE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def counted(*parts: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(part)
    return histogram


@given(st.lists(st.lists(SINGLE, max_size=20), max_size=6), st.randoms(use_true_random=False))
def test_counts_depend_on_the_values_only(parts: list[list[float]], random: object) -> None:
    """Not on their order, nor on how they come in parts: bins grow to the same width."""
    arrays = [np.array(part, np.float32) for part in parts]
    values = np.concatenate([*arrays, np.zeros(0, np.float32)])
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first, *others = (counted(*arrays), counted(values), counted(*np.array_split(shuffled, 3)))
    for other in others:
        assert (first.zeros, first.width) == (other.zeros, other.width)
        np.testing.assert_array_equal(first.counts, other.counts)
    assert first.size == values.size


@given(st.lists(SINGLE.filter(bool), min_size=1, max_size=30))
def test_every_value_is_in_its_bin(values: list[float]) -> None:
    histogram = counted(*(np.array([value], np.float32) for value in values))
    bins = np.flatnonzero(histogram.counts) - BINS
    places = {int(np.floor(np.float64(np.float32(value)) / histogram.width)) for value in values}
    assert set(bins.tolist()) == places
    widest = max(abs(np.float64(np.float32(value))) for value in values)
    assert BINS / 2 * histogram.width <= widest <= BINS * histogram.width


def test_zeros_are_counted_apart_and_what_is_no_number_is_not() -> None:
    histogram = counted(np.array([0.0, -0.0, 1.5, np.nan, np.inf, -np.inf], np.float32))
    assert (histogram.zeros, histogram.size, histogram.counts.sum()) == (2, 3, 1)
    assert counted(np.zeros(5, np.float32)).width == 0.0


@pytest.mark.parametrize("largest", [3e38, 1e-45])
def test_numbers_of_any_size(largest: float) -> None:
    histogram = counted(np.array([1e-45, -1e-45], np.float32), np.array([largest], np.float32))
    assert histogram.counts[:BINS].sum() == 1
    assert histogram.counts[BINS:].sum() == 2
