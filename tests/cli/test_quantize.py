"""`qdqtune quantize`, as a user calls it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtune
from qdqtune.cli.main import main
from qdqtune.report._quantization import quantize_text
from tests.conftest import model_from_text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    proto = model_from_text(
        "g (float[8,32] x) => (float[8,32] y) { h = MatMul(x, w) e = Erf(h) y = MatMul(e, v) }",
        w=rng.normal(size=(32, 32)).astype(np.float32),
        v=rng.normal(size=(32, 32)).astype(np.float32),
    )
    proto.graph.node[2].name = "the\x1b[2Jhead"
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_the_table(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["quantize", str(model), "--engine", "tensorrt", "--nodes_to_exclude", "n0", "-v"]
    assert main([*words, "--min_sqnr", "none"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].split() == ["op", "quantized", "float", "why", "float"]
    assert lines[2].split()[:3] == ["MatMul", "1", "1"]
    assert "asked: it was asked to stay float" in lines[2]
    (head,) = [line for line in lines if "head" in line]
    assert "quantized" in head
    assert "weighted op: " in head
    assert "\x1b" not in captured.out
    assert f"Written: {model.with_name('m.quant.onnx')}" in lines
    assert lines[-1].startswith("Calibrated on random inputs")


def test_a_result_near_its_limit_is_marked(model: Path) -> None:
    report = qdqtune.quantize(onnx.load(model), engine="tensorrt").report
    assert report.min_sqnr_db == 15.0
    assert not report.to_dict()["near_min_sqnr"]
    assert report.worst_db is not None
    near = replace(report, min_sqnr_db=report.worst_db - 0.5)
    assert near.to_dict()["near_min_sqnr"]
    assert "Only 0.5 dB above the limit of" in quantize_text(near)
    assert not replace(near, kept_float=True).near_min_sqnr


def test_as_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, target = tmp_path / "data.npy", tmp_path / "out.onnx"
    np.save(data, np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32))
    words = f"quantize {model} -o {target} --engine onnxruntime --threads 1 --format json -q"
    options = f"--calibration_data {data} --calibration_method max --performance_threshold none"
    assert main([*words.split(), *options.split()]) == 0
    captured = capsys.readouterr()
    record = json.loads(captured.out)
    assert captured.err == ""
    assert record["kind"] == "quantize"
    assert record["output"] == str(target)
    assert record["calibration"] == "data"
    assert record["tried_db"].keys() == {"max"}
    assert record["speedup"] is None
    assert record["not_timed"]
    assert not record["kept_float"]
    assert record["bytes_after"] == target.stat().st_size
    rules = {node["op_type"]: (node["quantized"], node["rule"]) for node in record["nodes"]}
    assert rules == {"MatMul": (True, "weighted op"), "Erf": (False, "no kernel")}


@pytest.mark.parametrize(
    ("options", "code", "what", "hint"),
    [
        ("--nodes_to_exclude n(", 2, "is not a regular expression", "backslash"),
        ("--nodes_to_exclude n7", 2, "has no node", "n0"),
        ("--op_types_to_quantize Matmul", 2, "has no op type", "MatMul"),
        ("--calibration_method mse", 2, "looks at data, but none was given", "--calibration_data"),
        ("--calibration_data no.npz", 2, "no.npz", ""),
        (
            "--quantize_mode int3",
            2,
            "unknown value int3; did you mean int8?",
            "See qdqtune quantize",
        ),
        ("--engine tensorrrt", 2, "Unknown engine", "tensorrt"),
        (
            "--engine onnxruntime --engine_option provider=CUDA",
            2,
            "unknown option 'provider'",
            "docs",
        ),
        ("-o m.onnx", 1, "exists already", "--force"),
        ("-o no/m.onnx", 1, "The folder", ""),
    ],
)
def test_mistakes(
    options: str, code: int, what: str, hint: str,
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(model.parent)
    assert main(["quantize", "m.onnx", "--engine", "tensorrt", *options.split()]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert what in captured.err.splitlines()[0]
    assert hint in captured.err
    assert "Traceback" not in captured.err
    assert [file.name for file in model.parent.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--min_sqnr much", "none or a number of dB"),
        ("--performance_threshold 0.5", "must be none or a ratio of 1 or more"),
        ("--calibration_method guess", "unknown value guess (one of: max"),
        ("--high_precision_dtype fp12", "unknown value fp12; did you mean fp"),
    ],
)
def test_options_that_are_none(
    options: str, what: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(model), *options.split()]) == 2
    assert what in capsys.readouterr().err
