"""A file's name is a name: it is no option, no list of files and no command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from qdqtune.cli.main import main
from tests.promises.models import one_matmul, tree

PROGRAM = str(Path(sys.executable).with_name("qdqtune"))
NAMES = [
    "--loadEngine=x.onnx",
    "--load-engine=x.onnx",
    "-o.onnx",
    "--force",
    "-",
    "a b.onnx",
    "new\nline.onnx",
    "$(touch pwned).onnx",
    "`touch pwned`;touch pwned&touch pwned|touch pwned.onnx",
    "'\"quotes\\.onnx",
    "@m.onnx",
    "*?[a-z]{b,c}.onnx",
    "%s{0}{model!r}.onnx",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(name: str) -> None:
    Path(name).write_bytes(one_matmul().SerializeToString())


@pytest.mark.parametrize("way", ["./{}", "{}"], ids=["by_folder", "after_dashes"])
def test_models_of_any_name_are_read_and_nothing_is_made(folder: Path, way: str) -> None:
    """In both ways in which such a name is handed over: after ``./``, and after ``--``."""
    for name in NAMES:
        save(name)
    names = [way.format(name) for name in NAMES]
    dashes = [] if way == "./{}" else ["--"]
    for name in names:
        assert main(["shapes", "-q", *dashes, name]) == 0
    assert main(["bench", "--runs", "2", "--threads", "1", "-q", *dashes, *names]) == 0
    assert {path.name for path in folder.iterdir()} == set(NAMES)


def test_results_of_any_name_are_written_there_and_nowhere_else(folder: Path) -> None:
    save("m.onnx")
    assert main(["insert", "m.onnx", "--ops", "MatMul", "-o", "q.onnx", "-q"]) == 0
    names = NAMES[::2]
    for name in names:
        line = ["strip", "q.onnx", "--save_placement", f"./{name}.json", "-o", f"./{name}", "-q"]
        assert main(line) == 0
        onnx.checker.check_model(Path(f"./{name}").read_bytes())
    made = {path.name for path in folder.iterdir()} - {"m.onnx", "q.onnx"}
    assert made == {*names, *(f"{name}.json" for name in names)}


@pytest.mark.slow
def test_a_tune_as_a_process_takes_a_name_for_a_name(folder: Path) -> None:
    name = "--loadEngine=$(touch pwned) `touch pwned`\n;touch pwned.onnx"
    save(name)
    out = f"./{name}.run"
    line = ["tune", f"./{name}", "--engine", "onnxruntime", "--preset", "quick", "-o", out, "-q"]
    done = subprocess.run(
        [PROGRAM, *line, "--max_benchmarks", "1", "--threads", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == {name, f"{name}.run"}
    inside = {path.split("/")[0] for path in tree(folder / f"{name}.run")}
    assert {"baseline.onnx", "optimized_final.onnx", "summary.json", "logs"} <= inside
    assert "pwned" not in inside


def test_an_unknown_option_is_a_mistake_and_not_passed_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save("m.onnx")
    for line in (["bench", "--loadEngine=x.onnx"], ["bench", "m.onnx", "--loadEngine=x.onnx"]):
        assert main(line) == 2
    assert "--loadEngine" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"m.onnx"}
