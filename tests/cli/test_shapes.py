"""Shapes on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune import zoo
from qdqtune.autotune.__main__ import main as autotune
from qdqtune.cli.main import main
from tests.conftest import model_from_text
from tests.silence import without_progress

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
        (["shapes", "{open}", "--batch_size", "2"], 2, ["No output file was given", "-o OUT"]),
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


def test_bench_shows_the_shapes(models: dict[str, str], capsys: Capture) -> None:
    flags = ["--shapes", "a:4x2", "--dim", "H=5", "--engine", "simulated"]
    assert main(["bench", models["pair"], *flags]) == 0
    assert "Inputs: a float32[4, 2], b float32[4, 5]\n" in capsys.readouterr().out


REFUSED = "error: The model leaves the sizes of its inputs open: 'image' is [N,4,H,8]."


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose height is open, and the folder of it.

    It is wide: blocks of runs of a smaller one have thousands, which take seconds to simulate.
    """
    path = tmp_path_factory.mktemp("open") / "recognizer.onnx"
    model = model_from_text(
        "g (float[N,4,H,8] image) => (float[N,4096,H,8] y)"
        "{ y = Conv <kernel_shape = [1, 1]> (image, w) }",
        w=np.linspace(-1, 1, 4 * 4096, dtype=np.float32).reshape(4096, 4, 1, 1),
    )
    onnx.save(model, path)
    onnx.save(model, path.with_name("baseline.onnx"))
    return path


@pytest.mark.parametrize(
    "line",
    [
        "tune {model} -o {out}",
        "tune {model} -o {out} --workflow subgraph",
        "tune {model} --dry_run",
        "bench {model}",
        "bench {model} --dim N=2",
        "verify {model} --against {model}",
        "quantize {model} -o {out}",
        "quantize {model} -o {out} --autotune quick",
        "inspect {model} --layers",
        "inspect {model} --groups",
        "insert {model} -o {out} --ops Conv",
    ],
)
def test_sizes_that_are_open_are_not_guessed(
    line: str, recognizer: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = [word.format(model=recognizer, out=tmp_path / "out") for word in line.split()]
    assert main([*words, "--engine", "simulated"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    refused = REFUSED.replace("[N,", "[2," if "N=2" in line else "[N,")
    assert without_progress(captured.err).startswith(refused)
    example = "--shapes image:2x4x224x8" if "N=2" in line else "--shapes image:1x4x224x8"
    assert example in captured.err
    takes_data = words[0] in ("tune", "quantize", "insert")
    assert (", or calibration data." in captured.err) == takes_data
    assert list(tmp_path.iterdir()) == []


def test_the_other_command_line_refuses_as_well(
    recognizer: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = ["--onnx_path", str(recognizer), "--engine", "simulated", "-o", str(tmp_path / "out")]
    assert autotune(words) == 1
    assert REFUSED in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_tune_shows_the_shapes(recognizer: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ["tune", str(recognizer), "--engine", "simulated", "--max_benchmarks", "1"]
    data = tmp_path / "data.npz"
    np.savez(data, image=np.ones((3, 4, 6, 8), np.float32))
    for number, (flags, shape) in enumerate(
        [
            (["--shapes", "2x4x5x8"], [2, 4, 5, 8]),
            (["--calibration_data", str(data)], [1, 4, 6, 8]),
            (["--workflow", "subgraph", "--max_shapes", "2x4x9x8"], [2, 4, 9, 8]),
        ]
    ):
        folder = tmp_path / str(number)
        assert main([*words, *flags, "-o", str(folder), "-q"]) == 0
        shown = "x".join(map(str, shape))
        assert f"\nInputs: image {shown}\n" in capsys.readouterr().out
        assert json.loads((folder / "summary.json").read_text())["shapes"] == {"image": shape}


@pytest.mark.parametrize(
    "line", ["inspect {model}", "optimize {model} -o {out}", "convert {model} -o {out} --to fp16"]
)
def test_what_only_looks_at_a_model_goes_on(
    line: str, recognizer: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = [word.format(model=recognizer, out=tmp_path / "out.onnx") for word in line.split()]
    assert main(words) == 0
    assert "open dims are taken as 1" in capsys.readouterr().err or words[0] == "optimize"
