"""Ranges from histograms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.calibration._range_fitting import (
    BINS,
    Histogram,
    Range,
    frequent_range,
    least_divergence_range,
    least_error_range,
)
from qdqtune.qdq._encoding import TensorFormat, dequantize, encode_range, quantize
from qdqtune.qdq.dialects import ONNXRUNTIME, TENSORRT

UNSIGNED = ONNXRUNTIME.formats["int8"].activation
SIGNED = TENSORRT.formats["int8"].activation
LAYOUTS = pytest.mark.parametrize("layout", [UNSIGNED, SIGNED], ids=["unsigned", "signed"])
RNG = np.random.default_rng(0)
COUNT = 60_000

VALUES = {
    "normal": RNG.normal(size=COUNT),
    "relu": np.maximum(RNG.normal(size=COUNT), 0),
    "mostly zero": np.where(RNG.random(COUNT) < 0.95, 0, RNG.exponential(size=COUNT)),
    "tails": RNG.standard_t(3, size=COUNT),
    "negative": -RNG.exponential(size=COUNT),
    "away from zero": RNG.uniform(5, 6, size=COUNT),
    "gelu": (lambda x: x / (1 + np.exp(-1.7 * x)))(RNG.normal(size=COUNT) * 3),
    "a mask": (RNG.random(COUNT) < 0.3).astype(np.float64),
    "two numbers": np.where(RNG.random(COUNT) < 0.5, 2.0, 2.5),
    "huge": RNG.normal(size=COUNT) * 1e37,
    "tiny": RNG.normal(size=COUNT) * 1e-37,
}

Fit = Callable[[Histogram, Range, TensorFormat], Range]
FITS: dict[str, Fit] = {
    "percentile": lambda seen, whole, _: frequent_range(seen, whole),
    "mse": least_error_range,
    "entropy": least_divergence_range,
}


def fitted(fit: Fit, values: np.ndarray, layout: TensorFormat) -> tuple[Range, Range]:
    """The range found, and the whole one."""
    single = values.astype(np.float32)
    histogram = Histogram()
    histogram.add(single)
    whole = float(single.min()), float(single.max())
    return fit(histogram, whole, layout), whole


def error(values: np.ndarray, ends: Range, layout: TensorFormat) -> float:
    encoding = encode_range(*ends, layout)
    rounded = dequantize(quantize(values, encoding), encoding.scale, encoding.zero_point, 0)
    return float(((rounded.astype(np.float64) - values) ** 2).mean())


@LAYOUTS
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_ranges_lie_in_the_whole_one_around_zero(
    values: np.ndarray, fit: Fit, layout: TensorFormat
) -> None:
    (low, high), whole = fitted(fit, values, layout)
    assert whole[0] <= low < high <= whole[1]
    if whole[0] <= 0.0 <= whole[1]:
        assert low <= 0.0 <= high


@LAYOUTS
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12),
    times=st.sampled_from([1, 40, 4000]),
)
def test_ranges_of_anything_lie_in_the_whole_one(
    fit: Fit, layout: TensorFormat, values: list[float], times: int
) -> None:
    (low, high), whole = fitted(fit, np.repeat(values, times), layout)
    assert whole[0] <= low <= high <= whole[1]


@LAYOUTS
@pytest.mark.parametrize("name", ["normal", "relu", "tails", "gelu", "mostly zero"])
def test_the_error_is_about_the_least_of_all(name: str, layout: TensorFormat) -> None:
    """Measured on the values themselves, over a fine grid of ranges."""
    values = VALUES[name].astype(np.float32)
    found, (low, high) = fitted(least_error_range, values, layout)
    shares = np.linspace(0.125, 1.0, 15)
    least = min(error(values, (low * share, high * share), layout) for share in shares)
    assert error(values, found, layout) <= 1.03 * least


def divergence(values: np.ndarray, ends: Range, width: float, layout: TensorFormat) -> float:
    """Bin by bin, as the words say it: slow, and easy to follow."""
    encoding = encode_range(*ends, layout)
    bins, counts = np.unique(np.floor(values[values != 0] / width), return_counts=True)
    steps = np.rint((bins + 0.5) * width / float(encoding.scale)) + int(encoding.zero_point)
    inside = (steps >= layout.low) & (steps <= layout.high)
    if not inside.any():
        return np.inf
    real = counts[inside].astype(np.float64)
    quantized = np.zeros_like(real)
    for step in np.unique(steps[inside]):
        here = steps[inside] == step
        quantized[here] = real[here].mean()
    real[0] += counts[bins < bins[inside][0]].sum()
    real[-1] += counts[bins > bins[inside][-1]].sum()
    real, quantized = real / real.sum(), quantized / quantized.sum()
    quantized = (1 - 1e-4) * quantized + 1e-4 / len(real)
    return float((real * np.log(real / quantized)).sum())


@LAYOUTS
@pytest.mark.parametrize("name", ["normal", "relu", "tails", "mostly zero", "negative"])
def test_the_divergence_is_about_the_least_of_all(name: str, layout: TensorFormat) -> None:
    values = VALUES[name].astype(np.float32)
    found, (low, high) = fitted(least_divergence_range, values, layout)
    histogram = Histogram()
    histogram.add(values)
    at = divergence(values, found, histogram.width, layout)
    shares = np.linspace(0.125, 1.0, 36)
    assert at <= 1.02 * min(
        divergence(values, (low * share, high * share), histogram.width, layout) for share in shares
    )


@LAYOUTS
@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_one_value_far_out_is_cut_off(fit: Fit, layout: TensorFormat) -> None:
    values = VALUES["normal"].astype(np.float32)
    values = np.concatenate([values, np.float32([12.0])])
    (_, high), _ = fitted(fit, values, layout)
    assert 3.0 < high < 11.0


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize("name", ["two numbers", "a mask"])
def test_what_is_cut_off_for_nothing_stays(name: str, fit: Fit) -> None:
    found, whole = fitted(fit, VALUES[name], UNSIGNED)
    assert found == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
@pytest.mark.parametrize(
    "values", [np.full(5000, 2.0), np.zeros(50_000), np.array([1.0, 9.0]), RNG.normal(size=100)]
)
def test_few_or_equal_values_keep_the_whole_range(values: np.ndarray, fit: Fit) -> None:
    found, whole = fitted(fit, values, UNSIGNED)
    assert found == whole


def test_zeros_do_not_move_the_ends() -> None:
    """A Relu's zeros cost nothing wherever the range ends."""
    few, many = (
        np.concatenate([VALUES["relu"][VALUES["relu"] > 0], np.zeros(zeros)])
        for zeros in (10, 1_000_000)
    )
    for fit in (least_error_range, least_divergence_range):
        assert fitted(fit, few, UNSIGNED)[0] == fitted(fit, many, UNSIGNED)[0]


def test_all_but_one_in_ten_thousand_fit() -> None:
    values = np.arange(1, 100_001, dtype=np.float64)
    (low, high), _ = fitted(FITS["percentile"], np.concatenate([-values, values]), UNSIGNED)
    width = 131072 / BINS
    assert (low, high) == pytest.approx((-99_980, 99_980), abs=width)
