"""What the guides do with trtexec, as written, on a stand-in for it: its times are simulated."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.autotune.__main__ import main
from qdqtune.autotune.workflows import generate_graph_json, groups_of
from qdqtune.engines._comparison import compare_files
from qdqtune.engines.layers._files import read_layer_info
from qdqtune.qdq_utils import get_quantized_tensors
from qdqtune.records._errors import EngineError, ModelError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import Comparison
from qdqtune.search.strategies._strategy import Effort
from qdqtune.workflows import _convert as float_type
from qdqtune.workflows.tuning._time_budget import PRESETS
from tests.conftest import model_from_text
from tests.seeds.test_guide import block
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

HOW_TO_TEST = """
  --model resnet50.bs128.onnx \
  --output ./resnet50_subgraph \
  --mode subgraph \
  --quant-type fp8 \
  --use-trtexec \
  --warmup-runs 5 \
  --timing-runs 20 \
  --incremental-validation \
  --trtexec-args "--stronglyTyped" \
  --schemes-per-region 30
"""
OPEN_SHAPES = """
    --model model.onnx \
    --output ./results_subgraph \
    --mode subgraph \
    --quant-type fp8 \
    --use-trtexec \
    --incremental-validation \
    --trtexec-args "--stronglyTyped --optShapes=input:1x3x224x224"
"""
PROMISED = (
    "optimized_raw.onnx", "optimized_final.onnx", "autotune_cache.json", "logs", "subgraphs",
)  # fmt: skip


@pytest.fixture(autouse=True)
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in is on PATH, and searches are over soon; returns the file with its calls."""
    program = write_stand_in_trtexec(tmp_path / "bin")
    calls = tmp_path / "calls.jsonl"
    for name, value in stand_in_environment(program, "10.16.1", calls=calls).items():
        monkeypatch.setenv(name, value)
    short = dict.fromkeys(Effort, 0.1)
    rounds = dict.fromkeys(Effort, 2)
    brief = replace(PRESETS["default"], seconds=short, rounds=rounds, final_s=2.0, assemblies=1)
    monkeypatch.setitem(PRESETS, "default", brief)
    monkeypatch.chdir(tmp_path)
    return calls


def save(path: str, text: str, *shape: int) -> None:
    weights = np.random.default_rng(0).normal(size=shape).astype(np.float32) * 0.03
    onnx.save(model_from_text(text, w=weights), path)


def subgraph_profiles(calls: Path) -> list[list[str]]:
    """The arguments of every call that asked for times of a subgraph's layers."""
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    return [words for words in found if any(word.startswith("--exportProfile") for word in words)]


def types_in(file: Path) -> set[str]:
    """The types that layers read and write."""
    layers = read_layer_info(file)
    return {tensor.dtype for layer in layers for tensor in (*layer.inputs, *layer.outputs)}


def test_how_to_test_subgraph_mode_and_deploy(stand_in: Path) -> None:
    """The command; then the guide's deployment of what it wrote."""
    save(
        "resnet50.bs128.onnx",
        """g (float[2,128,16,16] x) => (float[2,128,1,1] y) {
            a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) y = GlobalAveragePool(b)
        }""",
        128, 128, 3, 3,
    )  # fmt: skip
    assert main(shlex.split(HOW_TO_TEST)) == 0
    run = Path("resnet50_subgraph")
    for name in PROMISED:
        assert (run / name).exists(), name
    assert read_layer_info(run / "resnet50.bs128.fp16.graph.json")
    assert "&&&& PASSED" in (run / "resnet50.bs128.fp16.build.log").read_text()
    assert subgraph_profiles(stand_in)
    shutil.copyfile(run / "optimized_final.onnx", "optimized_final.onnx")
    assert "w" in get_quantized_tensors("optimized_final.onnx")

    for line in filter(None, block("13_trtexec.sh").replace("\\\n", " ").splitlines()):
        done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "GPU Compute Time: " in done.stdout


@pytest.mark.slow
def test_open_shapes_on_a_trtexec_without_profiles(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown profiling flags are tried once; subgraphs are compared by their totals."""
    monkeypatch.setenv("STAND_IN_TRT_WITHOUT", "--exportProfile --profilingVerbosity")
    save(
        "model.onnx",
        """g (float[N,3,224,224] input) => (float[N,4,1,1] y) {
            a = Conv<strides=[2,2], pads=[1,1,1,1]>(input, w) y = GlobalAveragePool(a)
        }""",
        4, 3, 3, 3,
    )  # fmt: skip
    assert main(shlex.split(OPEN_SHAPES)) == 0
    run = Path("results_subgraph")
    for name in PROMISED:
        assert (run / name).exists(), name
    assert read_layer_info(run / "model.fp16.graph.json")
    cache = json.loads((run / "autotune_cache.json").read_text())
    subgraphs = cache["phase_2"]["pieces"]
    assert subgraphs
    assert {subgraph["how"] for subgraph in subgraphs} == {"total"}
    shaped = "--optShapes=input:1x3x224x224"
    assert shaped in stand_in.read_text()
    assert len(subgraph_profiles(stand_in)) <= 2


@pytest.mark.slow
def test_the_float16_build_is_written_where_float16_is_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slower(*given: object, **how: object) -> object:
        measured, _ = compare_files(*given, **how)  # type: ignore[arg-type]
        return measured, [Comparison(0.5, 0.4, 0.6, 0.96, 10)]

    monkeypatch.setattr(float_type, "compare_files", slower)
    save(
        "tiny.onnx",
        "g (float[1,64,16,16] x) => (float[1,4,16,16] y) { y = Conv(x, w) }",
        4, 64, 1, 1,
    )  # fmt: skip
    command = "--model tiny.onnx --output run --mode subgraph --use-trtexec"
    assert main([*shlex.split(command), "--no-incremental-validation"]) == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["precision"] == "as given"
    for name in ("fp16", "fp32"):
        assert ("Half" in types_in(Path(f"run/tiny.{name}.graph.json"))) == (name == "fp16")
        assert "&&&& PASSED" in Path(f"run/tiny.{name}.build.log").read_text()
    assert summary["files"]["graph_json"] == "tiny.fp32.graph.json"


@pytest.mark.parametrize("strongly_typed", [True, False])
def test_generate_graph_json(strongly_typed: bool, stand_in: Path) -> None:
    save("net.onnx", "g (float[N,64,16,16] x) => (float[] y) { y = Conv(x, w) }", 64, 64, 1, 1)
    written = generate_graph_json(
        "net.onnx", "new/folder", None, strongly_typed, ["--optShapes=x:2x64x16x16"]
    )
    assert written == "new/folder/net.fp16.graph.json"
    assert "&&&& PASSED" in Path("new/folder/net.fp16.build.log").read_text()
    (build, *_) = [
        json.loads(line) for line in stand_in.read_text().splitlines() if "--onnx" in line
    ]
    assert ("--fp16" in build) != strongly_typed
    assert "--optShapes=x:2x64x16x16" in build
    if strongly_typed:
        assert "Half" in types_in(Path(written))
    record = groups_of("net.onnx", graph_json=written, inputs=InputRequest(dims={"N": 2}))
    assert [group.op_types for group in record.groups] == [("Conv",)]


def test_generate_graph_json_of_what_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    save("net.onnx", "g (float[1,64,16,16] x) => (float[] y) { y = Conv(x, w) }", 64, 64, 1, 1)
    monkeypatch.setenv("STAND_IN_TRT_FAULT", "build_fails@net")
    with pytest.raises(EngineError, match="does not build the model"):
        generate_graph_json("net.onnx", "out")
    assert not Path("out/net.fp16.graph.json").exists()
    with pytest.raises(ModelError):
        generate_graph_json("none.onnx", "out")
