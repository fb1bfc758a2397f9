"""`qdqtune inspect --layers`."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "resnet.onnx"
    onnx.save(zoo.build("resnet18", blocks=(1, 1), width=8, image=32), path)
    return str(path)


def test_a_table_or_json(model: str, capsys: Capture) -> None:
    arguments = ["inspect", model, "--layers", "--engine", "simulated", "--runs", "2"]
    assert main([*arguments, "--sort", "time", "--max_items", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("simulated ")
    assert "100.0 % of the time is mapped to nodes" in text
    assert "more layers" in text
    assert main([*arguments, "--engine_option", "profile=cpu", "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["kind"] == "layers"
    assert value["runs"] == 2
    assert value["engine"]["options"]["profile"] == "cpu"
    assert sum(layer["ms"] for layer in value["layers"]) == pytest.approx(value["total_ms"])


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--layers", "--why", "x"], "--why goes without --layers only"),
        (["--layers", "--dialect", "onnxruntime"], "--dialect goes without --layers only"),
        (["--runs", "3"], "--runs goes with --layers or --groups only"),
        (["--sort", "time"], "--sort goes with --layers or --groups only"),
        (["--threads", "1"], "--threads goes with --layers or --groups only"),
        (["--layers", "--engine", "nope"], "Unknown engine 'nope'"),
        (["--layers", "--engine", "simulated", "--dim", "N=3"], "N"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    model: str, flags: list[str], what: str, capsys: Capture
) -> None:
    assert main(["inspect", model, *flags]) == 2
    assert what in capsys.readouterr().err


def test_a_model_that_the_engine_refuses(tmp_path: Path, capsys: Capture) -> None:
    proto = zoo.build("resnet18", blocks=(1, 1), width=8, image=32)
    proto.graph.node[0].domain = "nobodys"
    proto.opset_import.append(onnx.helper.make_opsetid("nobodys", 1))
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    assert main(["inspect", str(path), "--layers", "--engine", "onnxruntime"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: onnxruntime does not tell the layers of")
    assert "Traceback" not in told
