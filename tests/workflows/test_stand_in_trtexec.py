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

from qdqtune.autotune.search.trial import Effort
from qdqtune.engines.layer_files import read_layer_info
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.tuning import TuneResult
from qdqtune.workflows.benchmarks import TrtExecBenchmark
from qdqtune.workflows.comparison import bench
from qdqtune.workflows.tune import tune
from qdqtune.workflows.tuning.settings import PRESETS
from tests.conftest import model_from_text
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

TEXT = """g (float[N,32,16,16] x) => (float[N,32,16,16] y) {
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
        patch.setitem(PRESETS, "brief", short)
        yield "brief"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@pytest.fixture
def stand_in(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_stand_in_trtexec(tmp_path / "bin")
    for name, value in stand_in_environment(folder, "10.16.1", calls=calls).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(32, 32, 3, 3)) * 0.05 for n in (1, 2)}
    proto = model_from_text(TEXT, **{name: w.astype(np.float32) for name, w in weights.items()})
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def shapes(batch: int) -> dict[str, tuple[int, ...]]:
    return {"x": (batch, 32, 16, 16)}


def tuned(model: Path, folder: Path, preset: str, **options: Any) -> TuneResult:
    return tune(
        model, engine="trtexec", preset=preset, output_dir=folder, inputs=InputRequest(shapes(2)),
        min_shapes=shapes(1), max_shapes=shapes(4), max_benchmarks=1, **options,
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
def test_subgraph_mode_writes_the_layers_and_goes_on_with_them(
    model: Path, tmp_path: Path, calls: Path, brief: str
) -> None:
    run = tmp_path / "run"
    result = tuned(model, run, brief, workflow="subgraph")
    summary = result.summary
    assert summary.precision == "float16"
    assert summary.files["graph_json"] == "net.fp16.graph.json"
    assert summary.files["build_log"] == "net.fp16.build.log"
    assert read_layer_info(run / "net.fp16.graph.json").layers
    assert "&&&& PASSED" in (run / "net.fp16.build.log").read_text()
    assert summary.subgraphs["structural"] == 0
    asked = builds(calls)
    whole = ["--maxShapes=x:4x32x16x16", "--minShapes=x:1x32x16x16", "--optShapes=x:2x32x16x16"]
    assert asked["baseline"] == asked["float"] == whole
    pieces = [words for name, words in asked.items() if name.startswith("subgraph_")]
    assert pieces
    for words in pieces:
        assert len(words) == 3
        assert not any("=x:" in word for word in words)
    calls.unlink()
    again = tuned(model, run, brief, workflow="subgraph")
    assert again.summary.benchmarks == again.summary.subgraph_benchmarks == 0
    assert again.summary.files == summary.files
    assert not any(name.startswith("subgraph_") for name in builds(calls))


@pytest.mark.usefixtures("stand_in")
def test_region_mode_on_a_weakly_typed_version(
    model: Path, tmp_path: Path, calls: Path, brief: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It chooses types by itself; and it can't tell outputs: the reference engine does."""
    monkeypatch.setenv("STAND_IN_TRT_VERSION", "8.6.1")
    monkeypatch.setenv("STAND_IN_TRT_WITHOUT", "--exportOutput")
    result = tuned(model, tmp_path / "run", brief)
    assert result.summary.precision == "as given"
    assert result.summary.dialect == "tensorrt-8"
    assert result.summary.engine.options["typing"] == "weak"
    assert "--minShapes=x:1x32x16x16" in builds(calls)["baseline"]
    if not result.summary.kept_float:
        assert (result.summary.output_sqnr_db or 0) > 20


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("without", ["", "--exportOutput"])
def test_bench_goes_without_outputs_if_it_must(
    without: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_TRT_WITHOUT", without)
    record = bench([model, model], engine="trtexec", runs=1, inputs=InputRequest(shapes(2)))
    assert record.ok
    assert bool(record.contestants[1].sqnr_db) == (not without)


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
    with pytest.raises(UsageError, match="is not told ranges of shapes"):
        bench([model], engine="onnxruntime", min_shapes=shapes(1))
