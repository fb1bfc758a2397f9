"""`qdqtune convert`, as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.cli.main import main
from qdqtune.graph._files import load_model
from tests.conftest import model_from_text


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    proto = model_from_text(
        """g (float[1,4] x) => (float[1,4] y) {
            a = MatMul(x, w)
            b = Add(a, mask)
            c = Softmax(b)
            y = CumSum(c, axis)
        }""",
        w=np.eye(4, dtype=np.float32),
        mask=np.array([0, 0, 0, -1e9], np.float32),
        axis=np.array(1),
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


def test_text(model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "half.onnx"
    assert main(["convert", str(model_path), "--to", "fp16", "-o", str(output)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{output}: 3 ops in fp16, 1 kept as they were, Casts +2"
    assert lines[1].startswith("kept: n3, CumSum is sensitive")
    assert lines[2] == "saturated: mask, numbers beyond the range of fp16"
    assert lines[3].startswith("output y: SQNR ")


def test_json(model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "half.onnx"
    arguments = ["--to", "bf16", "--keep-ops", "Softmax", "--keep_nodes", "n0", "--no-keep_io"]
    arguments += ["-o", str(output), "--format", "json"]
    assert main(["convert", str(model_path), *arguments]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "conversion"
    assert record["precision"] == "bf16"
    assert record["converted"] == ["n1"]
    assert set(record["kept"]) == {"n0", "n2", "n3"}
    assert record["output_sqnr_db"]["y"] > 30
    graph = onnx.load(output).graph
    for value in (*graph.input, *graph.output):
        assert value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16


def test_the_model_is_loaded_once(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading takes seconds if there are very many weights; the comparison uses what is there."""
    loaded: list[Path] = []

    def load(path: Path) -> ir.Model:
        loaded.append(path)
        return load_model(path)

    monkeypatch.setattr("qdqtune.workflows._convert.load_model", load)
    output = tmp_path / "half.onnx"
    assert main(["convert", str(model_path), "--to", "fp16", "-o", str(output)]) == 0
    assert loaded == [model_path]


def test_an_existing_file_stays(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["convert", str(model_path), "--to", "fp16", "-o", str(model_path)]
    before = model_path.read_bytes()
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err
    assert model_path.read_bytes() == before
    assert main([*arguments, "--force"]) == 0
    assert model_path.read_bytes() != before


@pytest.mark.parametrize(
    "arguments", [["--to", "fp8"], [], ["--to", "fp16", "--keep_nodes", "nobody"]]
)
def test_usage(model_path: Path, tmp_path: Path, arguments: list[str]) -> None:
    assert main(["convert", str(model_path), "-o", str(tmp_path / "o.onnx"), *arguments]) == 2
