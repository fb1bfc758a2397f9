"""Every example runs, at a small size, and the list of them is complete."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.real.wheels import Wheels

from qdqtune import zoo
from qdqtune.autotune import QDQAutotunerBase
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PLACEMENT, ENGINE = EXAMPLES / "qdq_placement", EXAMPLES / "custom_engine"
PAGES = (EXAMPLES / "README.md", PLACEMENT / "README.md")


def run(words: list[str], folder: Path, *python_path: Path, limit_s: float = 280) -> str:
    """Run a command; returns what it printed."""
    here = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": here + os.pathsep + os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join([*map(str, python_path), *sys.path]),
    }
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def small_resnet(folder: Path, **more: Any) -> Path:
    model = zoo.build("resnet18", image=32, width=8, blocks=(1, 1), **more)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_the_readme_lists_every_example() -> None:
    listed = re.findall(r"\]\(([^)]+)\)", PAGES[0].read_text())
    for path in [*EXAMPLES.rglob("*.py"), *EXAMPLES.rglob("*.ipynb")]:
        name = path.relative_to(EXAMPLES).as_posix()
        beside = [each for each in listed if "/" in each and each.split("/")[0] == path.parent.name]
        assert name in listed or (beside and path.name.startswith("test_")), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    assert targets
    for target in targets:
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_set_batch_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = small_resnet(tmp_path, dynamic=True)
    script = str(PLACEMENT / "set_batch_size.py")
    for words, code in ((["--batch-size", "128"], 0), (["--batch-size", "0"], 1)):
        monkeypatch.setattr(sys, "argv", [script, str(model), *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(script, run_name="__main__")
        assert ended.value.code == code
    written = onnx.load(tmp_path / "model.bs128.onnx")
    shape = written.graph.input[0].type.tensor_type.shape
    assert shape.dim[0].dim_value == 128
    assert "batch_size must be" in capsys.readouterr().err


def test_custom_regions_are_the_residual_blocks() -> None:
    example = runpy.run_path(str(EXAMPLES / "custom_regions.py"), run_name="example")
    model = zoo.build("resnet18", image=32, width=8)
    autotuner: QDQAutotunerBase = example["BlockAutotuner"](model, dialect="onnxruntime")
    nodes = [position for region in autotuner.regions for position in region.nodes]
    assert sorted(nodes) == list(range(len(autotuner.graph.nodes)))
    adds = [
        [autotuner.graph.nodes[each].op_type for each in region.nodes].count("Add")
        for region in autotuner.regions
    ]
    assert adds == [1] * 8 + [0]  # eight blocks, and the classifier behind them


@pytest.mark.docs
def test_custom_regions(tmp_path: Path) -> None:
    words = [str(EXAMPLES / "custom_regions.py"), "--schemes", "2", "--width", "8"]
    assert "block 0, " in run([sys.executable, *words], tmp_path)
    onnx.checker.check_model(str(tmp_path / "custom_regions.onnx"))


@pytest.mark.docs
def test_step_by_step(tmp_path: Path) -> None:
    words = [str(EXAMPLES / "step_by_step.py"), str(small_resnet(tmp_path)), "--schemes", "2"]
    assert "region " in run([sys.executable, *words], tmp_path)
    onnx.checker.check_model(str(tmp_path / "step_by_step" / "tuned.onnx"))
    assert (tmp_path / "step_by_step" / "autotuner_state_pattern_cache.yaml").exists()


@pytest.mark.docs
def test_the_custom_engine_is_proved_by_its_tests(tmp_path: Path) -> None:
    for path in ENGINE.glob("*.py"):
        shutil.copy(path, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    assert " passed" in run([sys.executable, "-m", "pytest", *options], tmp_path)


@pytest.mark.docs
def test_the_custom_engine_is_known_by_its_name(tmp_path: Path) -> None:
    """As its pyproject.toml announces it to pip."""
    (entry,) = re.findall(r'^plain_ort = "(.+)"$', (ENGINE / "pyproject.toml").read_text(), re.M)
    info = tmp_path / "site" / "plain_ort-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-ort\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[qdqtune.engines]\nplain_ort = {entry}\n")
    words = ["qdqtune", "tune", str(small_resnet(tmp_path)), "--engine", "plain_ort", "--threads",
             "1", "--preset", "quick", "--max_benchmarks", "1", "--no_report", "-o", "run",
             "--format", "json"]  # fmt: skip
    summary = json.loads(run(words, tmp_path, info.parent, ENGINE))
    assert summary["engine"]["name"] == "plain_ort"
    assert summary["benchmarks"] == 1


@pytest.mark.docs
def test_the_notebook(tmp_path: Path) -> None:
    notebook = json.loads((EXAMPLES / "first_steps.ipynb").read_text())
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "clear the outputs before committing"
    code = "\n\n".join("".join(cell["source"]) for cell in cells)
    (tmp_path / "cells.ipy").write_text(code.replace("max_benchmarks=6", "max_benchmarks=2"))
    run([sys.executable, "-m", "IPython", "--quick", "cells.ipy"], tmp_path)
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.docs
def test_the_commands_of_qdq_placement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """On simulated engines, of which one is a stand-in for NVIDIA's trtexec."""
    program = write_stand_in_trtexec(tmp_path_factory.mktemp("stand-in"))
    for name, value in stand_in_environment(program, "10.16.1").items():
        monkeypatch.setenv(name, value)
    shutil.copy(PLACEMENT / "set_batch_size.py", tmp_path)
    found = re.findall(r"^```sh\n(.*?)^```", PAGES[1].read_text(), re.MULTILINE | re.DOTALL)
    small = "".join(found).replace("--budget 5m", "--budget 15")
    for line in small.replace("int8", "int8 --engine simulated").splitlines():
        run(shlex.split(line), tmp_path)
    rows = re.findall(r"^\| (`.+?) \|", PAGES[1].read_text(), re.MULTILINE)
    listed = {name.rstrip("/") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    written = {
        path.name
        for folder in ("resnet50_results", "resnet50_subgraph")
        for path in (tmp_path / folder).iterdir()
        # A hidden file is a lock; the section on graph.json tells of the others.
        if not path.name.startswith(".") and ".fp16." not in path.name
    }
    assert written <= listed
    # A short run may not get as far as these.
    assert listed - written <= {"ranges.json", "optimized_raw.onnx", "autotune_cache.json"}


@pytest.mark.docs
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("brief_timing")
def test_read_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(EXAMPLES / "read_text.py")
    wheel = runpy.run_path(script, run_name="example")["WHEEL"]
    try:
        Wheels(tmp_path).members(wheel, ".onnx")
    except subprocess.CalledProcessError:
        pytest.skip(f"{wheel} can't be downloaded here")
    monkeypatch.setattr(sys, "argv", [script, "--folder", str(tmp_path), "--budget", "30"])
    example = runpy.run_path(script, run_name="__main__")
    printed = capsys.readouterr().out
    read = {name: float(share) for name, share in re.findall(r"(\w+) +reads +([\d.]+)%", printed)}
    assert set(read) == {"float", "quantized", "tuned"}
    assert read["tuned"] >= read["float"] - 100 * example["MOST_DROP"] - 0.05  # as rounded
