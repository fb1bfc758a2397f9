"""`qdqtune inspect --groups`."""

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
    arguments = ["inspect", model, "--groups", "--engine", "simulated", "--runs", "2"]
    assert main([*arguments, "--sort", "time", "--max_items", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("simulated ")
    assert "Conv + Relu" in text
    assert "more groups" in text
    assert "100.0 % of the nodes are in layers" in text
    assert main([*arguments, "--engine_option", "profile=gpu", "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["kind"] == "groups"
    assert value["engine"]["options"]["profile"] == "gpu"
    assert sum(len(group["nodes"]) for group in value["groups"]) == value["nodes"]


def test_layers_from_a_file(model: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "layers.json"
    file.write_text(json.dumps({"Layers": ["conv1 + relu1", "maxpool"]}))
    assert main(["inspect", model, "--groups", "--graph_json", str(file), "--max_items", "2"]) == 0
    text = capsys.readouterr().out
    assert f"by {file}" in text
    assert "conv1 + relu1" in text
    assert "by structure alone" in text
    assert "share" not in text


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--groups", "--layers"], "--layers can't be used with --groups"),
        (["--groups", "--why", "x"], "--why can't be used with --groups"),
        (["--graph_json", "a.json"], "--graph_json requires --groups"),
        (["--layers", "--graph_json", "a.json"], "--graph_json requires --groups"),
        (
            ["--groups", "--graph_json", "a.json", "--runs", "3"],
            "--runs can't be used with --graph_json",
        ),
        (["--groups", "--graph_json", "a.json"], "a.json can't be read"),
        (["--groups", "--engine", "nope"], "Unknown engine 'nope'"),
        (["--groups", "--engine", "simulated", "--dim", "N=3"], "N"),
        (["--runs", "3"], "--runs requires --layers or --groups"),
    ],
)
def test_a_mistake_is_told_in_a_line(
    model: str, flags: list[str], what: str, capsys: Capture
) -> None:
    assert main(["inspect", model, *flags]) == 2
    told = capsys.readouterr().err
    assert what in told
    assert "Traceback" not in told


@pytest.mark.parametrize("content", ["", "no json", '{"Layers": []}', '{"Layers": [{"Name": 3}'])
def test_a_file_that_is_no_list_of_layers(
    model: str, content: str, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "layers.json"
    file.write_text(content)
    assert main(["inspect", model, "--groups", "--graph_json", str(file)]) == 2
    assert "layers.json" in capsys.readouterr().err
