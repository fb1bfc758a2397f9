"""Ranges that cut off rare values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune.calibration.clipping import clip_ranges
from qdqtune.engines.isolated import Worker
from qdqtune.graph.naming import name_nodes
from qdqtune.graph.prepared import PreparedModel
from qdqtune.graph.shapes import infer_shapes
from qdqtune.qdq.dialects import ONNXRUNTIME, TENSORRT
from qdqtune.qdq.encoding import TensorFormat, dequantize, encode_range, quantize
from qdqtune.records.ranges import CalibrationSource, RangeMethod, Ranges
from tests.conftest import model_from_text

UNSIGNED = ONNXRUNTIME.formats["int8"].activation
SIGNED = TENSORRT.formats["int8"].activation


@pytest.fixture(scope="module")
def worker() -> Worker:
    with Worker() as worker:
        yield worker


def clipped(
    worker: Worker, folder: Path, values: np.ndarray, layout: TensorFormat
) -> dict[RangeMethod, tuple[float, float]]:
    model = ir.from_proto(model_from_text("g (float[N,M] x) => (float[N,M] y) { y = Neg(x) }"))
    name_nodes(model)
    infer_shapes(model)
    base = PreparedModel(model, folder)
    whole = Ranges({"x": (float(values.min()), float(values.max()))}, CalibrationSource.DATA)
    samples = [{"x": part} for part in np.array_split(values, 4)]
    found = clip_ranges(base, worker, samples, whole, layout)
    return {method: ranges.by_tensor["x"] for method, ranges in found.items()}


def error(values: np.ndarray, ends: tuple[float, float], layout: TensorFormat) -> float:
    encoding = encode_range(*ends, layout)
    rounded = dequantize(quantize(values, encoding), encoding.scale, encoding.zero_point, 0)
    return float(((rounded - values) ** 2).mean())


@pytest.mark.parametrize("layout", [UNSIGNED, SIGNED], ids=["unsigned", "signed"])
def test_a_rare_value_is_cut_off(worker: Worker, layout: TensorFormat, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 10_000)).astype(np.float32)
    values[5, 7] = 12.0
    ends = clipped(worker, tmp_path, values, layout)
    whole = (float(values.min()), 12.0)
    assert ends[RangeMethod.MSE][1] < 10.0
    assert error(values, ends[RangeMethod.MSE], layout) < error(values, whole, layout)
    assert 3.0 < ends[RangeMethod.PERCENTILE][1] < 6.0


def test_what_is_evenly_spread_stays_whole(worker: Worker, tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(-1, 3, size=(64, 500)).astype(np.float32)
    low, high = clipped(worker, tmp_path, values, UNSIGNED)[RangeMethod.MSE]
    assert (low, high) == pytest.approx((-1.0, 3.0), abs=0.11)


def test_samples_of_any_size_are_looked_at_evenly(worker: Worker, tmp_path: Path) -> None:
    """Every part of a large tensor counts, not only its beginning."""
    values = np.zeros((4, 400_000), np.float32)
    values[:, 300_000:] = np.random.default_rng(0).uniform(0, 9, size=(4, 100_000))
    low, high = clipped(worker, tmp_path, values, UNSIGNED)[RangeMethod.PERCENTILE]
    assert low == 0.0
    assert high == pytest.approx(9.0, rel=0.02)


def test_a_tensor_of_one_value_keeps_its_range(worker: Worker, tmp_path: Path) -> None:
    ends = clipped(worker, tmp_path, np.full((8, 3), 2.0, np.float32), UNSIGNED)
    assert set(ends.values()) == {(2.0, 2.0)}
