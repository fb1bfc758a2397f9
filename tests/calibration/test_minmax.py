"""Ranges and output error, with the real engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qdqtune.calibration.inputs import random_inputs
from qdqtune.calibration.minmax import collect_ranges, watched_tensors
from qdqtune.calibration.quality import SignalToNoise
from qdqtune.engines.isolated import Worker
from qdqtune.graph.prepared import PreparedModel
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.errors import EngineError, ModelError
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource, Ranges
from tests.conftest import model_from_text


def prepared(proto: onnx.ModelProto, folder: Path) -> PreparedModel:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return PreparedModel(model, folder)


def calibrate(base: PreparedModel, samples: list) -> Ranges:
    with Worker() as worker:
        return collect_ranges(base, worker, samples, CalibrationSource.DATA)


def test_ranges_are_the_extremes_over_all_samples(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    base = prepared(residual, tmp_path)
    samples = list(random_inputs(base.index, 3))
    ranges = calibrate(base, samples)
    residual.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in ("c1", "r1")
    )
    session = ort.InferenceSession(residual.SerializeToString(), providers=["CPUExecutionProvider"])
    for name in ("c1", "r1", "y"):
        seen = np.stack([session.run([name], feeds)[0] for feeds in samples])
        assert ranges.by_tensor[name] == pytest.approx((seen.min(), seen.max()), rel=1e-5, abs=1e-6)
    assert ranges.samples == 3
    assert ranges.source is CalibrationSource.DATA
    assert set(ranges.by_tensor) == {"x", "c1", "bn", "r1", "c2", "y"}


def test_integers_constants_and_empty_tensors_are_not_watched(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[2,3] x, float[0,3] nothing) => (float[2,3] y, int64[2] s) {
            s = Shape(x)
            y = Concat<axis=0>(x, nothing)
        }"""
    )
    assert watched_tensors(prepared(proto, tmp_path).index) == ["x", "y"]


def test_half_floats(tmp_path: Path) -> None:
    proto = model_from_text("g (float16[4] x) => (float16[4] y) { y = Neg(x) }")
    base = prepared(proto, tmp_path)
    ranges = calibrate(base, [{"x": np.array([1, 2, 3, -4], np.float16)}])
    assert ranges.by_tensor["y"] == (-3.0, 4.0)


def test_values_that_are_no_numbers_have_no_range(tmp_path: Path) -> None:
    proto = model_from_text("g (float[2] x) => (float[2] y) { l = Log(x) y = Exp(l) }")
    base = prepared(proto, tmp_path)
    ranges = calibrate(base, [{"x": np.array([0.0, 1.0], np.float32)}])
    assert set(ranges.by_tensor) == {"x", "y"}  # log(0) is infinite


def test_only_what_is_quantized_is_watched(residual: onnx.ModelProto, tmp_path: Path) -> None:
    base = prepared(residual, tmp_path)
    samples = random_inputs(base.index, 1)
    placement = Placement.of([("w2", "n3", 1)], ["r1"])
    with Worker() as worker:
        ranges = collect_ranges(base, worker, samples, CalibrationSource.DATA, placement)
    assert set(ranges.by_tensor) == {"r1"}


def test_no_samples_and_wrong_samples(residual: onnx.ModelProto, tmp_path: Path) -> None:
    base = prepared(residual, tmp_path)
    with pytest.raises(ModelError, match="no calibration data"):
        calibrate(base, [])
    with pytest.raises(EngineError, match="does not run"):
        calibrate(base, [{"x": np.zeros((1, 5, 8, 8), np.float32)}])
    assert not list(tmp_path.glob("calibration*"))


def test_signal_to_noise() -> None:
    ratio = SignalToNoise()
    signal = np.ones(100, np.float32)
    ratio.add({"y": signal, "n": np.arange(3)}, {"y": signal * 1.1, "n": np.arange(3)})
    ratio.add({"z": signal}, {"z": signal})
    ratio.add({"w": signal}, {"w": signal * np.nan})
    assert ratio.decibels() == {
        "y": pytest.approx(20.0, abs=0.01), "z": np.inf, "w": -np.inf,
    }  # fmt: skip
