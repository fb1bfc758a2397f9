"""Ranges and output error, with the real engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import psutil
import pytest

from qdqtune import zoo
from qdqtune.calibration._instrumentation import watched_tensors
from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.records._errors import EngineError, ModelError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource, Ranges
from tests.conftest import model_from_text
from tests.in_process import real_processes


def prepared(proto: onnx.ModelProto, folder: Path) -> PreparedModel:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return PreparedModel(model, folder)


def memory_of(worker: Worker) -> int:
    assert worker.pid is not None
    used: int = psutil.Process(worker.pid).memory_info().rss
    return used


Calibrate = Callable[[PreparedModel, list], Ranges]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with real_processes(), Worker() as started:
        yield started


@pytest.fixture
def calibrate(worker: Worker) -> Calibrate:
    return lambda base, samples: collect_ranges(base, worker, samples, CalibrationSource.DATA)


def test_ranges_are_the_extremes_over_all_samples(
    residual: onnx.ModelProto, tmp_path: Path, calibrate: Calibrate
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


def test_half_floats(tmp_path: Path, calibrate: Calibrate) -> None:
    proto = model_from_text("g (float16[4] x) => (float16[4] y) { y = Neg(x) }")
    base = prepared(proto, tmp_path)
    ranges = calibrate(base, [{"x": np.array([1, 2, 3, -4], np.float16)}])
    assert ranges.by_tensor["y"] == (-3.0, 4.0)


@pytest.mark.parametrize("bad", [0.0, -1.0])  # their logarithms are infinite and NaN
@pytest.mark.parametrize("position", [0, 1, 40])
def test_values_that_are_no_numbers_have_no_range(
    bad: float,
    position: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    calibrate: Calibrate,
) -> None:
    proto = model_from_text(
        "g (float[41] x) => (float[41] y) { l = Log(x) b = IsNaN(l) y = Where(b, x, x) }"
    )
    samples = [{"x": np.ones(41, np.float32)} for _ in range(3)]
    samples[2]["x"][position] = bad
    ranges = calibrate(prepared(proto, tmp_path), samples)
    assert ranges.by_tensor == {"x": (bad, 1.0), "y": (bad, 1.0)}
    assert "l takes infinite or undefined values, first in sample 2" in caplog.text


def test_large_numbers_are_numbers(tmp_path: Path, calibrate: Calibrate) -> None:
    proto = model_from_text("g (float[4] x) => (float[4] y) { y = Neg(x) }")
    values = np.array([3e38, 3e38, -3e38, -3e38], np.float32)
    ranges = calibrate(prepared(proto, tmp_path), [{"x": values}])
    assert ranges.by_tensor["y"] == (values.min(), values.max())


def test_shapes_may_differ_between_samples_and_be_empty(
    tmp_path: Path, calibrate: Calibrate
) -> None:
    proto = model_from_text(
        """
        g (float[N,3] x) => (float[M,3] y) {
            s = ReduceMax<axes=[1], keepdims=0>(x)
            b = Greater(s, zero)
            kept = Compress<axis=0>(x, b)
            y = Neg(kept)
            rest = Neg(y)
        }""",
        zero=np.array(0, np.float32),
    )
    base = prepared(proto, tmp_path)
    samples = [{"x": np.full((rows, 3), value, np.float32)} for rows, value in ((2, -1), (5, 2))]
    assert calibrate(base, samples).by_tensor["y"] == (-2.0, -2.0)
    assert set(calibrate(base, samples[:1]).by_tensor) == {"x", "s"}
    assert calibrate(base, [{"x": np.zeros((0, 3), np.float32)}]).by_tensor == {}


def test_optimizations_do_not_change_what_is_watched(tmp_path: Path, calibrate: Calibrate) -> None:
    proto = zoo.build("bert", layers=1, width=64, vocabulary=50, sequence=16)
    base = prepared(proto, tmp_path)
    samples = list(random_inputs(base.index, 2))
    ranges = calibrate(base, samples)
    watched = watched_tensors(base.index)
    del proto.graph.output[:]
    proto.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in watched
    )
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    runs = [session.run(watched, feeds) for feeds in samples]
    assert len(watched) > 30
    for name, *seen in zip(watched, *runs, strict=True):
        expected = (min(map(np.min, seen)), max(map(np.max, seen)))
        assert ranges.by_tensor[name] == pytest.approx(expected, rel=1e-4, abs=1e-4), name


def test_progress_is_told(residual: onnx.ModelProto, tmp_path: Path, worker: Worker) -> None:
    base = prepared(residual, tmp_path)
    samples = list(random_inputs(base.index, 3))
    told: list[tuple[int, int | None]] = []

    def progress(done: int, total: int | None) -> None:
        told.append((done, total))

    for given in (samples, (feeds for feeds in samples[:1])):
        collect_ranges(base, worker, given, CalibrationSource.DATA, progress=progress)
    assert told == [(1, 3), (2, 3), (3, 3), (1, None)]


def test_any_number_of_samples_takes_the_memory_of_a_few(tmp_path: Path, worker: Worker) -> None:
    proto = model_from_text("g (float[N,1000] x) => (float[N,1000] y) { y = Relu(x) }")
    base = prepared(proto, tmp_path)
    live: set[int] = set()
    most: list[int] = []
    used: list[int] = []

    def samples() -> Iterator[dict[str, np.ndarray]]:
        for number in range(200):
            array = np.full((50 + number % 7, 1000), number, np.float32)
            live.add(number)
            weakref.finalize(array, live.discard, number)
            yield {"x": array}

    def progress(done: int, _total: int | None) -> None:
        most.append(len(live))
        if done in (50, 200):
            used.append(memory_of(worker))

    ranges = collect_ranges(base, worker, samples(), CalibrationSource.DATA, progress=progress)
    assert ranges.samples == 200
    assert max(most) <= 2
    assert used[1] - used[0] < 10e6  # 150 samples are 30 MB


def test_only_what_is_quantized_is_watched(
    residual: onnx.ModelProto, tmp_path: Path, worker: Worker
) -> None:
    base = prepared(residual, tmp_path)
    samples = random_inputs(base.index, 1)
    placement = Placement.of([("w2", "n3", 1)], ["r1"])
    ranges = collect_ranges(base, worker, samples, CalibrationSource.DATA, placement)
    assert set(ranges.by_tensor) == {"r1"}


def test_no_samples_and_wrong_samples(
    residual: onnx.ModelProto, tmp_path: Path, calibrate: Calibrate
) -> None:
    base = prepared(residual, tmp_path)
    with pytest.raises(ModelError, match="no calibration data"):
        calibrate(base, [])
    good, bad = (np.zeros((1, channels, 8, 8), np.float32) for channels in (3, 5))
    with pytest.raises(EngineError, match="does not run on sample 1"):
        calibrate(base, [{"x": good}, {"x": bad}])
    assert not list(tmp_path.glob("calibration*"))


@pytest.mark.usefixtures("worker_processes")
def test_tensors_are_let_go_once_reduced(tmp_path: Path) -> None:
    chain = " ".join(f"t{number} = Neg(t{number - 1})" for number in range(1, 50))
    proto = model_from_text(
        f"g (float[1000,1000] x) => (float[1000,1000] y) {{ t0 = Neg(x) {chain} y = Neg(t49) }}"
    )
    base = prepared(proto, tmp_path)
    feeds = {"x": np.ones((1000, 1000), np.float32)}
    used: list[int] = []
    with Worker() as worker:
        worker.info()
        before = memory_of(worker)
        collect_ranges(
            base, worker, [feeds], CalibrationSource.DATA,
            progress=lambda *_: used.append(memory_of(worker)),
        )  # fmt: skip
    assert used[0] - before < 100e6  # all tensors are 200 MB


def test_signal_to_noise() -> None:
    ratio = SignalToNoise()
    signal = np.ones(100, np.float32)
    ratio.add({"y": signal, "n": np.arange(3)}, {"y": signal * 1.1, "n": np.arange(3)})
    ratio.add({"z": signal}, {"z": signal})
    ratio.add({"w": signal}, {"w": signal * np.nan})
    assert ratio.decibels() == {
        "y": pytest.approx(20.0, abs=0.01), "z": np.inf, "w": -np.inf,
    }  # fmt: skip
