"""`qdqtune inspect --layers`."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.engines import _registry as registry
from qdqtune.records._health import GpuHealth

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
        (["--layers", "--why", "x"], "--why can't be used with --layers"),
        (["--layers", "--dialect", "onnxruntime"], "--dialect can't be used with --layers"),
        (["--runs", "3"], "--runs requires --layers or --groups"),
        (["--sort", "time"], "--sort requires --layers or --groups"),
        (["--threads", "1"], "--threads requires --layers or --groups"),
        (["--layers", "--engine", "nope"], "Unknown engine 'nope'"),
        (["--min_shapes", "1x3x32x32"], "--min_shapes requires --layers or --groups"),
        (["--layers", "--engine", "simulated", "--max_shapes", "1"], "not take ranges of shapes"),
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
    assert told.startswith("error: onnxruntime does not report the layers of")
    assert "Traceback" not in told


@pytest.mark.skipif(
    not registry.available("tensorrt_rtx").lists_layers, reason="TensorRT-RTX is not installed"
)
def test_layers_and_groups_without_times(
    model: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no GPU answers, models are built; what would time them says so."""
    no_gpu = GpuHealth(reason="none")
    monkeypatch.setattr(registry, "find_gpus", lambda: no_gpu)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    arguments = ["inspect", model, "--engine", "tensorrt_rtx"]
    assert main([*arguments, "--layers", "--max_items", "2"]) == 0
    text = capsys.readouterr().out
    assert "not timed" in text
    assert "there are no times" in text
    assert "layers by precision: " in text
    assert "share" not in text
    assert main([*arguments, "--groups", "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["total_ms"] is None
    assert all(group["ms"] is None for group in value["groups"])
    assert value["covered"] > 0.9
    for command in (["tune", model, "-o", "nowhere"], ["bench", model]):
        assert main([*command, "--engine", "tensorrt_rtx"]) == 1
        assert "TensorRT-RTX can't time models here: no NVIDIA GPU" in capsys.readouterr().err
    assert not Path("nowhere").exists()
