"""Benchmarks as objects, and the one of a process."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.workflows import _benchmarks as benchmark_instance
from qdqtune.workflows._benchmarks import (
    EngineBenchmark,
    TensorRTPyBenchmark,
    TrtExecBenchmark,
    benchmark_onnx_model,
    init_benchmark_instance,
)
from tests.conftest import model_from_text


@pytest.fixture
def model() -> onnx.ModelProto:
    return model_from_text(
        "g (float[8,64] x, int64[4] i) => (float[4,64] y) { h = MatMul(x, w) y = Gather(h, i) }",
        w=np.eye(64, dtype=np.float32),
    )


@pytest.fixture
def path(model: onnx.ModelProto, tmp_path: Path) -> Path:
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture(autouse=True)
def nobody_has_made_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    current = benchmark_instance._Current()
    monkeypatch.setattr(benchmark_instance, "_CURRENT", current)
    yield
    current.replace(None)


def test_a_file_and_its_bytes_are_timed(path: Path) -> None:
    with EngineBenchmark("onnxruntime", threads=1, timing_runs=40) as benchmark:
        assert 0 < benchmark.run(path) < 1000
        assert 0 < benchmark(path.read_bytes()) < 1000
        assert len(benchmark.measure(path).blocks_ms) == 4


def test_runs_fall_into_blocks(path: Path) -> None:
    with EngineBenchmark("simulated", warmup_runs=7, timing_runs=25) as benchmark:
        assert [len(block) for block in benchmark.measure(path).blocks_ms] == [13, 13]
    with EngineBenchmark("simulated", warmup_runs=0, timing_runs=1) as benchmark:
        assert [len(block) for block in benchmark.measure(path).blocks_ms] == [1]


def test_open_dims_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = model_from_text("g (float[N,64] x) => (float[N,64] y) { y = Relu(x) }")
    with EngineBenchmark("simulated") as benchmark:
        assert benchmark.run(model.SerializeToString()) < math.inf
        assert benchmark.run(model.SerializeToString()) < math.inf
    assert caplog.text.count("taken as 1") == 1


def test_sizes_that_are_open_are_asked_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_from_text("g (float[N,W] x) => (float[N,W] y) { y = Relu(x) }")
    log = tmp_path / "one.log"
    init_benchmark_instance(engine="simulated")
    assert benchmark_onnx_model(model.SerializeToString(), log) == math.inf
    assert "'x' is [N,W]" in caplog.text
    assert "--shapes x:1x224" in log.read_text()
    init_benchmark_instance(engine="simulated", inputs=InputRequest({"x": (1, 64)}))
    assert benchmark_onnx_model(model.SerializeToString()) < math.inf


@pytest.mark.parametrize("junk", [b"", b"junk", "missing.onnx"])
def test_what_can_not_be_timed_is_infinite(
    junk: bytes | str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "logs" / "one.log"
    with EngineBenchmark("simulated") as benchmark:
        assert benchmark.run(junk, log) == math.inf
    assert "could not be timed" in caplog.text
    assert "failed: " in log.read_text()


def test_a_log_is_added_to(path: Path, tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("mine\n")
    with EngineBenchmark("simulated") as benchmark:
        benchmark.run(path, log)
    assert log.read_text().startswith("mine\nsimulated: ")
    assert "median" in log.read_text()


def test_bytes_without_their_weights(
    model: onnx.ModelProto, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(model, file, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert benchmark_onnx_model(file) < math.inf
    assert benchmark_onnx_model(file.read_bytes()) == math.inf
    assert "weights lie in other files" in caplog.text


@pytest.mark.parametrize("kind", [TensorRTPyBenchmark, TrtExecBenchmark])
def test_engines_that_can_not_measure_here(
    kind: type[EngineBenchmark], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    plugin = tmp_path / "p.so"
    plugin.touch()
    with pytest.raises(EngineError, match=r"not installed|no NVIDIA GPU"):
        kind("t.cache", warmup_runs=1, timing_runs=2, plugin_libraries=[str(plugin)])
    with pytest.raises(UsageError, match=r"missing\.so does not exist"):
        kind(plugin_libraries=["missing.so"])


def test_a_missing_tensorrt_is_an_import_error_too() -> None:
    with pytest.raises(ImportError) as caught:
        TensorRTPyBenchmark()
    assert isinstance(caught.value, EngineError)
    assert caught.value.hint


def test_numbers_that_make_no_sense() -> None:
    with pytest.raises(UsageError, match="0 timed runs"):
        EngineBenchmark("simulated", timing_runs=0)


def test_one_is_made_when_it_is_needed(path: Path) -> None:
    assert 0 < benchmark_onnx_model(str(path), flush_timing_cache=True) < 1000
    assert benchmark_instance.current_benchmark() is not None


def test_a_failed_one_measures_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It must not be another engine that measures in its place."""
    assert init_benchmark_instance(use_trtexec=True) is None
    assert benchmark_onnx_model(path) == math.inf
    assert "trtexec is not installed" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [
        {"plugin_libraries": ["missing.so"]},
        {"engine": "nope"},
        {"timing_runs": 0},
        {"timing_runs": "many"},
    ],
)
def test_what_can_not_be_made_is_none(
    arguments: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    assert init_benchmark_instance(**arguments) is None
    assert "there is no benchmark" in caplog.text


def test_what_is_of_no_use_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qdqtune")
    plugin = tmp_path / "p.so"
    plugin.touch()
    made = init_benchmark_instance(
        plugin_libraries=[str(plugin)], timing_cache_file="t.cache", trtexec_args=["--fp16"],
        engine="simulated",
    )  # fmt: skip
    assert made is not None
    for words in ("takes no plugin libraries", "has no timing cache", "without use_trtexec"):
        assert words in caplog.text


@pytest.mark.usefixtures("worker_processes")
def test_no_process_is_left_behind(path: Path) -> None:
    init_benchmark_instance(engine="simulated")
    benchmark_onnx_model(path)
    first = benchmark_instance._CURRENT.benchmark
    assert first is not None
    assert first._worker is not None
    pid = first._worker.pid
    assert pid is not None
    init_benchmark_instance(engine="simulated")
    assert first._worker is None
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_nothing_raises() -> None:
    assert benchmark_onnx_model(3) == math.inf  # type: ignore[arg-type]
