"""Tuning for TensorRT, whole, on the stand-in for its program: what is written, asked and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtune._command_configs import ConvertConfig
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.engines._worker import Worker
from qdqtune.engines.layers._files import read_layer_info
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._tuning import TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.search.strategies._strategy import Effort
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator, Kernels
from qdqtune.workflows._bench import bench
from qdqtune.workflows._benchmarks import TrtExecBenchmark
from qdqtune.workflows._convert import convert_model
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._time_budget import PRESETS
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

TEXT = """g (float[N,C,H,W] x) => (float[N,C,H,W] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, w2)
    y = Add(c, b)
}"""


@pytest.fixture(scope="module")
def brief() -> Iterator[str]:
    """A preset that is over soon."""
    short = replace(
        PRESETS["quick"],
        rounds={Effort.SCREEN: 2, Effort.CONFIRM: 2},
        seconds={Effort.SCREEN: 0.1, Effort.CONFIRM: 0.1},
        final_s=0.1,
        assemblies=2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", short)
        yield "quick"


@pytest.fixture
def sure(brief: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, with a last comparison that is long enough to be certain of something."""
    monkeypatch.setitem(PRESETS, "extensive", replace(PRESETS[brief], final_s=30.0))
    return "extensive"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@pytest.fixture
def stand_in(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_stand_in_trtexec(tmp_path / "bin")
    for name, value in stand_in_environment(folder, "10.16.1", calls=calls).items():
        monkeypatch.setenv(name, value)


def write_net(folder: Path, channels: int, size: int) -> Path:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(channels, channels, 3, 3)) * 0.05 for n in (1, 2)}
    text = TEXT.replace("C,H,W", f"{channels},{size},{size}")
    proto = model_from_text(text, **{name: w.astype(np.float32) for name, w in weights.items()})
    onnx.save(proto, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_net(tmp_path, 32, 16)


@pytest.fixture
def large_model(tmp_path: Path) -> Path:
    """One that is faster in int8, in the stand-in's times as well."""
    return write_net(tmp_path, 64, 32)


def shapes(batch: int, channels: int = 32, size: int = 16) -> dict[str, tuple[int, ...]]:
    return {"x": (batch, channels, size, size)}


def tuned(model: Path, folder: Path, preset: str, *sizes: int, **options: Any) -> TuneResult:
    return tune(
        model, engine="trtexec", preset=preset, output_dir=folder,
        inputs=InputRequest(shapes(2, *sizes)), min_shapes=shapes(1, *sizes),
        max_shapes=shapes(4, *sizes), max_benchmarks=1, **options,
    )  # fmt: skip


def builds(calls: Path) -> dict[str, list[str]]:
    """The arguments about shapes of every build, by the model's name."""
    found: dict[str, list[str]] = {}
    for line in calls.read_text().splitlines():
        words = json.loads(line)
        files = [Path(word.partition("=")[2]).stem for word in words if word.startswith("--onnx=")]
        for file in files:
            found[file] = sorted(word for word in words if "Shapes=" in word)
    return found


@pytest.mark.usefixtures("stand_in")
@pytest.mark.slow
def test_subgraph_mode_writes_the_layers_and_continues_with_them(
    model: Path, tmp_path: Path, calls: Path, brief: str
) -> None:
    run = tmp_path / "run"
    result = tuned(model, run, brief, workflow="subgraph")
    summary = result.summary
    assert summary.precision == "float16"
    assert summary.files["graph_json"] == "net.fp16.graph.json"
    assert summary.files["build_log"] == "net.fp16.build.log"
    assert read_layer_info(run / "net.fp16.graph.json")
    assert "&&&& PASSED" in (run / "net.fp16.build.log").read_text()
    assert summary.subgraphs["structural"] == 0
    asked = builds(calls)
    whole = ["--maxShapes=x:4x32x16x16", "--minShapes=x:1x32x16x16", "--optShapes=x:2x32x16x16"]
    assert asked["baseline"] == whole
    assert "float" not in asked  # what the baseline was built to serves for both
    subgraphs = [words for name, words in asked.items() if name.startswith("subgraph_")]
    assert subgraphs
    for words in subgraphs:
        assert len(words) == 3
        assert not any("=x:" in word for word in words)
    calls.unlink()
    again = tuned(model, run, brief, workflow="subgraph")
    assert again.summary.benchmarks == again.summary.subgraph_benchmarks == 0
    assert again.summary.files == summary.files
    assert not any(name.startswith("subgraph_") for name in builds(calls))


@pytest.mark.usefixtures("stand_in")
@pytest.mark.slow
@pytest.mark.parametrize("workflow", ["subgraph", "region"])
def test_an_op_without_an_integer_kernel_stays_float(
    large_model: Path, tmp_path: Path, sure: str, workflow: str,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Only whole models show it: alone, each op has one. A resumed run knows it."""
    monkeypatch.setenv("STAND_IN_TRT_VERSION", "8.6.1")
    monkeypatch.setenv("STAND_IN_TRT_NO_INT8", "n2")
    run = tmp_path / "run"
    result, again = (
        tune(
            large_model, engine="trtexec", preset=sure, output_dir=run, workflow=workflow,
            inputs=InputRequest(shapes(2, 64, 32)), max_benchmarks=3,
        )
        for _ in range(2)
    )  # fmt: skip
    lines = [json.loads(line) for line in (run / "measurements.jsonl").read_text().splitlines()]
    failed = [line for line in lines if line["kind"] == "measurement" and line["failure"]]
    assert failed
    assert all(line["refused"] == ["n2", "n3"] for line in failed)
    assert len(failed) == result.summary.failed < result.summary.benchmarks
    assert not any("can't be evaluated" in record.message for record in caplog.records)
    assert again.summary.benchmarks == 0
    assert (again.summary.batches, again.summary.speedup > 0) == (result.summary.batches, True)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.slow
def test_region_mode_on_a_weakly_typed_version(
    large_model: Path, tmp_path: Path, calls: Path, sure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told which types to choose; and it can't tell outputs: the reference engine does."""
    monkeypatch.setenv("STAND_IN_TRT_VERSION", "8.6.1")
    monkeypatch.setenv("STAND_IN_TRT_WITHOUT", "--exportOutput")
    result = tuned(large_model, tmp_path / "run", sure, 64, 32, precision="float32")
    summary = result.summary
    assert summary.precision == "as given"
    assert summary.dialect == "tensorrt-8"
    assert summary.engine.options["typing"] == "weak"
    assert summary.engine.options["precision"] == "fp32"
    assert "--fp16" not in calls.read_text()
    assert "--minShapes=x:1x64x32x32" in builds(calls)["baseline"]
    assert not summary.kept_float
    assert summary.speedup > 1.2
    assert (summary.output_sqnr_db or 0) > 20


@pytest.mark.usefixtures("stand_in")
@pytest.mark.slow
def test_region_mode_on_a_strongly_typed_version(
    large_model: Path, tmp_path: Path, calls: Path, sure: str
) -> None:
    """The model is half, and int8 where that pays; its own kernels say how accurate it is."""
    result = tuned(large_model, tmp_path / "run", sure, 64, 32)
    summary = result.summary
    assert (summary.precision, summary.dialect) == ("float16", "tensorrt")
    assert not summary.kept_float
    assert summary.speedup > 1.2
    assert 20 < (summary.output_sqnr_db or 0) < (summary.precision_sqnr_db or 0)
    assert any("as_given" in name for name in builds(calls))
    types = {weight.data_type for weight in onnx.load(result.model).graph.initializer}
    assert {TensorProto.INT8, TensorProto.FLOAT16} <= types
    assert "thread" not in tune_text(result).splitlines()[0]  # a busy machine is advised on them


@pytest.mark.usefixtures("stand_in")
def test_what_does_not_run_in_bfloat16_is_evaluated_by_the_reference_engine(
    tmp_path: Path,
) -> None:
    """The model as given runs, but the stand-in computes nothing in the converted one's type."""
    given, folder = tmp_path / "as_given.onnx", tmp_path / "base"
    text = "g (float[2,8] x) => (float[2,8] y) { t = MatMul(x, w) y = Softmax(t) }"
    weights = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    onnx.save(model_from_text(text, w=weights), given)
    convert_model(given, tmp_path / "converted.onnx", ConvertConfig(to="bf16"))
    folder.mkdir()
    source = open_source(tmp_path / "converted.onnx")
    feeds = {"x": weights[:2]}
    with reference_worker() as runner, Worker("trtexec") as worker:
        base = PreparedModel(source.model, folder)
        kernels = Kernels("trtexec", worker, worker.options)
        evaluator = AccuracyEvaluator(
            source, base, runner, lambda: [feeds], kernels=kernels, reference=given
        )
        candidate = base.write(base.whole(), "candidate")
        assert evaluator.quality(candidate).against_float["y"] > 30
        assert evaluator.kernels is None
        evaluator.close()


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("without", ["", "--exportOutput"])
def test_bench_goes_without_outputs_if_it_must(
    without: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TRT_WITHOUT", without)
    record = bench([model, model], engine="trtexec", runs=1, inputs=InputRequest(shapes(2)))
    assert record.ok
    assert bool(record.entries[1].sqnr_db) == (not without)


@pytest.mark.usefixtures("stand_in")
def test_the_guides_benchmark_passes_on_what_it_is_told(
    model: Path, tmp_path: Path, calls: Path
) -> None:
    plugin, cache = tmp_path / "p.so", tmp_path / "t.cache"
    plugin.touch()
    with TrtExecBenchmark(
        cache, 0, 1, [str(plugin)], str(tmp_path / "bin/trtexec"),
        ["--optShapes=x:2x32x16x16", "--builderOptimizationLevel=2"],
    ) as benchmark:  # fmt: skip
        assert 0 < benchmark.run(model) < 100
    built = next(line for line in calls.read_text().splitlines() if "--onnx=" in line)
    for word in (f"--timingCacheFile={cache}", str(plugin), "--builderOptimizationLevel=2",
                 "x:2x32x16x16"):  # fmt: skip
        assert word in built


def test_engines_that_take_any_shape_are_not_told_ranges(model: Path) -> None:
    with pytest.raises(UsageError, match="does not take ranges of shapes"):
        bench([model], engine="onnxruntime", min_shapes=shapes(1))
