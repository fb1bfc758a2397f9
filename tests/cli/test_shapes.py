"""Shapes on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main
from tests.conftest import model_from_text

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    settings = {"width": 8, "image": 32, "blocks": (1, 1, 1, 1)}
    protos = {
        "open": zoo.build("resnet18", **settings, dynamic=True),
        "two": zoo.build("resnet18", **settings, batch=2),
        "pair": model_from_text(
            "g (float[N,2] a, float[N,H] b) => (float[N,2] y, float[N,H] z)"
            " { y = Relu(a) z = Relu(b) }"
        ),
        "other_type": model_from_text(
            "g (int64[N,3,32,32] image) => (int64[N,3,32,32] y) { y = Neg(image) }"
        ),
    }
    for name, proto in protos.items():
        onnx.save(proto, folder / f"{name}.onnx")
    return {name: str(folder / f"{name}.onnx") for name in protos}


def test_the_table(models: dict[str, str], capsys: Capture) -> None:
    assert main(["shapes", models["pair"]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["input", "a", "float", "[N,2]"]
    assert lines[5].split() == ["output", "z", "float", "[N,H]"]
    assert lines[-1] == "Open dims with a name: N, H"


def test_a_fixed_model_and_its_json(
    models: dict[str, str], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out.onnx"
    assert main(["shapes", models["open"], "--dim", "N=3", "-o", str(out), "--format=json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["kind"] == "shapes"
    assert record["inputs"] == [{"name": "image", "dtype": "float", "dims": [3, 3, 32, 32]}]
    assert record["outputs"][0]["dims"] == [3, 1000]
    assert record["proof"] == "run"
    assert record["output"] == str(out)
    arguments = ["shapes", models["two"], "--batch-size", "1", "-o", str(out), "--force"]
    assert main(arguments) == 0
    assert "what the model gave for its samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["shapes", "{open}", "--batch_size", "2"], 2, ["no file to write", "-o OUT"]),
        (["shapes", "{open}", "-o", "{out}"], 2, ["No sizes", "--batch_size"]),
        (["shapes", "{open}", "--batch_size", "0", "-o", "{out}"], 2, ["from 1 up"]),
        (["shapes", "{open}", "--set", "image:2x3", "-o", "{out}"], 2, ["4 dims"]),
        (["shapes", "{pair}", "--set", "2x3", "-o", "{out}"], 2, ["2 inputs", "a:[N,2]"]),
        (["shapes", "{open}", "--set", "img:1", "-o", "{out}"], 2, ["no input 'img'", "image"]),
        (["bench", "{open}", "--dim", "M=2"], 2, ["called 'M'", "Symbols: N"]),
        (["bench", "{open}", "--dim", "N=2", "--dim", "N=3"], 2, ["given twice"]),
        (["bench", "{open}", "--shapes", "image"], 2, ["can't be read", "NAME:1x3x224x224"]),
        (["bench", "{open}", "--shapes", "0x3x32x32"], 2, ["below 1"]),
        (["bench", "{two}", "--shapes", "1x3x32x32"], 2, ["fixed at 2", "qdqtune shapes"]),
        (["bench", "{open}", "--input_range", "ids:0:1"], 2, ["no input 'ids'"]),
        (["bench", "{open}", "{two}", "--dim", "N=3"], 2, ["takes other inputs"]),
        (["bench", "{open}", "{other_type}"], 2, ["takes other inputs"]),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, words: list[str], models: dict[str, str], tmp_path: Path,
    capsys: Capture,
) -> None:  # fmt: skip
    out = tmp_path / "out.onnx"
    assert main([argument.format(out=out, **models) for argument in arguments]) == code
    captured = capsys.readouterr()
    for word in words:
        assert word in captured.err
    assert captured.out == ""
    assert not out.exists()


@pytest.mark.parametrize(
    ("files", "flags", "fed"),
    [
        (["open"], ["--dim", "N=3"], "float32[3, 3, 32, 32]"),
        (["open", "two"], [], "float32[2, 3, 32, 32]"),
        (["two", "open"], ["--dim", "N=2"], "float32[2, 3, 32, 32]"),
        (["two", "open"], ["--shapes", "image:2x3x32x32"], "float32[2, 3, 32, 32]"),
    ],
)
def test_bench_at_shapes(
    files: list[str], flags: list[str], fed: str, models: dict[str, str], capsys: Capture
) -> None:
    paths = [models[name] for name in files]
    assert main(["bench", *paths, *flags, "--runs", "10", "--threads", "1", "--format=json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["inputs"] == {"image": fed}
    assert "taken as 1" not in captured.err


def test_bench_says_what_is_open(models: dict[str, str], capsys: Capture) -> None:
    assert main(["bench", models["pair"], "--shapes", "a:4x2", "--runs", "10"]) == 0
    errors = capsys.readouterr().err
    assert "H (b[1])" in errors
    assert "--dim H=SIZE" in errors
    assert "N (" not in errors
