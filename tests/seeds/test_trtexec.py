"""What the guides do with trtexec, as written, on a stand-in for it: its times are made up."""

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

from qdqtune.autotune.search.trial import Effort
from qdqtune.cli.autotune import main
from qdqtune.engines.layer_files import read_layer_info
from qdqtune.qdq_utils import get_quantized_tensors
from qdqtune.workflows.tuning.settings import PRESETS
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


def piece_profiles(calls: Path) -> list[list[str]]:
    """The arguments of every call that asked for times of a piece's layers."""
    found = [json.loads(line) for line in calls.read_text().splitlines()]
    return [words for words in found if any(word.startswith("--exportProfile") for word in words)]


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
    assert read_layer_info(run / "resnet50.bs128.fp16.graph.json").layers
    assert "&&&& PASSED" in (run / "resnet50.bs128.fp16.build.log").read_text()
    assert piece_profiles(stand_in)
    shutil.copyfile(run / "optimized_final.onnx", "optimized_final.onnx")
    assert "w" in get_quantized_tensors("optimized_final.onnx")

    for line in filter(None, block("13_trtexec.sh").replace("\\\n", " ").splitlines()):
        done = subprocess.run(shlex.split(line), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "GPU Compute Time: " in done.stdout


def test_open_shapes_on_a_trtexec_without_profiles(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profiling flags that it doesn't know are tried once; pieces are judged by their totals."""
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
    assert read_layer_info(run / "model.fp16.graph.json").layers
    cache = json.loads((run / "autotune_cache.json").read_text())
    pieces = cache["phase_2"]["pieces"]
    assert pieces
    assert {piece["how"] for piece in pieces} == {"total"}
    shaped = "--optShapes=input:1x3x224x224"
    assert shaped in stand_in.read_text()
    assert len(piece_profiles(stand_in)) <= 2
