"""A run writes to files and folders of its own: never through a link, never into a second name."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.graph._atomic_files import make_folder, make_own, open_to_append, replacing
from qdqtune.graph._files import load_model, save_model, write_text
from qdqtune.records._errors import OutputError
from qdqtune.workflows.tuning._folder import SUBGRAPHS, RunFolder
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import matmul_file, model_from_text

TIMEOUT_S = 120
FOLDERS = (
    "logs",
    "region_models",
    "subgraphs",
    "earlier",
    "earlier/.partial-run",
    "earlier/.partial-result",
)
ADDED_TO = (
    "measurements.jsonl", "measurements.damaged.jsonl", "region_models/weights.bin",
    "region_models/weights.index", "subgraphs/weights.bin", "subgraphs/weights.index",
    "logs/engine.log", "logs/runs.log", ".lock",
)  # fmt: skip
BUILTIN_ENGINES = (".staged", ".scratch", ".handover")
HOW: list[dict[str, bool]] = [{}, {"restart": True}, {"force": True}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return matmul_file(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in subgraph mode, which has files of every kind."""
    run = tmp_path_factory.mktemp("finished") / "run"
    tuned(model, run, max_benchmarks=2)
    return run


def tuned(model: Path, run: Path, **more: Any) -> None:
    settings = {"engine": "simulated", "preset": "quick", "workflow": "subgraph"}
    tune(model, output_dir=run, **{**settings, **more})


@pytest.fixture
def no_hang() -> Iterator[None]:
    """Ends what waits at a pipe."""

    def end(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(TIMEOUT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def linked(path: Path) -> None:
    path.symlink_to(path.parents[len(path.parents) - 1] / "nowhere")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("how", HOW, ids=["resume", "restart", "force"])
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_is_a_link_is_refused(
    name: str, how: dict[str, bool], model: Path, tmp_path: Path
) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    (run / name).parent.mkdir(parents=True)
    for file in ("measurements.jsonl", "autotune_cache.json"):
        (run / file).touch()
    elsewhere.mkdir()
    (elsewhere / "float.onnx").write_text("not of this run")
    (run / name).symlink_to(elsewhere)
    with pytest.raises(OutputError, match=f"{name} is a link") as error:
        RunFolder(run, model, folders=(SUBGRAPHS,), **how)
    assert "Remove it" in error.value.hint
    assert contents(elsewhere) == {"float.onnx": b"not of this run"}


@pytest.mark.parametrize("put", [linked, pipe, a_socket, folder])
@pytest.mark.parametrize("name", ADDED_TO)
def test_what_is_added_to_must_be_a_plain_file(
    name: str, put: Callable[[Path], None], model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    (run / name).parent.mkdir(parents=True)
    if name != ".lock":
        (run / ".lock").touch()
    put(run / name)
    if name.startswith("logs/") and put is folder:
        return  # logs have folders in them
    with pytest.raises(
        OutputError, match=r"is a (link|pipe|socket|folder), where the run would write"
    ):
        RunFolder(run, model)


@pytest.mark.parametrize("put", [linked, pipe, folder])
@pytest.mark.parametrize("name", BUILTIN_ENGINES)
def test_what_is_in_the_way_of_a_runs_own_scratch_goes(
    name: str, put: Callable[[Path], None], model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    put(run / name)
    with RunFolder(run, model) as opened:
        (opened.staging() / "x").write_text("x")
        assert not opened.scratch.is_symlink()
    assert sorted(os.listdir(run)) == [".lock", ".staged"]


def test_weights_beside_a_model_go_to_no_folder_that_is_a_link(tmp_path: Path) -> None:
    given, run, elsewhere = (tmp_path / name for name in ("given", "run", "elsewhere"))
    for each in (given / "sub", run, elsewhere):
        each.mkdir(parents=True)
    (elsewhere / "w.bin").write_text("not of this run")
    (run / "sub").symlink_to(elsewhere)
    text = "g (float[4,64] x) => (float[4,64] y) { y = MatMul(x, w) }"
    source = model_from_text(text, w=np.eye(64, dtype=np.float32))
    onnx.save(source, given / "m.onnx", save_as_external_data=True, location="sub/w.bin")
    with (
        RunFolder(run, given / "m.onnx", force=True) as opened,
        pytest.raises(OutputError, match="sub is a link"),
    ):
        opened.copy_model(given / "m.onnx", run / "baseline.onnx")
    assert (elsewhere / "w.bin").read_text() == "not of this run"


def whole_files(run: Path) -> list[Path]:
    """Every file of a run but those that it adds to, and what it does not write again."""
    files = (file for file in run.rglob("*") if file.is_file() and "subgraphs" not in file.parts)
    return [
        file
        for file in files
        if str(file.relative_to(run)) not in ADDED_TO and "logs" not in file.parts
    ]


@pytest.mark.usefixtures("no_hang")
def test_a_resumed_run_replaces_links_and_waits_at_no_pipe(
    finished: Path, model: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("not of this run")
    links, pipes = (Path(shutil.copytree(finished, tmp_path / name)) for name in ("links", "pipes"))
    for file in whole_files(links):
        file.unlink()
        file.symlink_to(victim)
    for file in whole_files(pipes):
        file.unlink()
        os.mkfifo(file)
    names = {str(file.relative_to(finished)) for file in whole_files(finished)}
    assert {"summary.json", "optimized_final.onnx", "baseline.onnx", "autotune_cache.json"} <= names
    for run in (links, pipes):
        tuned(model, run, max_benchmarks=2)
        again = [run / name for name in names if "/" not in name]
        assert [str(file) for file in again if file.is_symlink() or not file.is_file()] == []
        assert (run / "placement.json").read_bytes() == (finished / "placement.json").read_bytes()
    assert victim.read_text() == "not of this run"


def test_a_run_that_is_copied_by_hard_links_leaves_the_other_alone(
    finished: Path, model: Path, tmp_path: Path
) -> None:
    first = Path(shutil.copytree(finished, tmp_path / "first"))
    before = contents(first)
    second = Path(shutil.copytree(first, tmp_path / "second", copy_function=os.link))
    tuned(model, second, seed=3)  # other inputs, other scales: weights are added
    assert contents(first) == before
    assert len(contents(second)["measurements.jsonl"]) > len(before["measurements.jsonl"])


def test_an_output_that_is_a_link_is_replaced_and_needs_force(tmp_path: Path, model: Path) -> None:
    victim, link, text = tmp_path / "victim", tmp_path / "out.onnx", tmp_path / "out.txt"
    victim.write_text("not ours")
    for lies_at in (victim, tmp_path / "nowhere"):
        for output in (link, text):
            output.unlink(missing_ok=True)
            output.symlink_to(lies_at)
        with pytest.raises(OutputError, match="exists already"):
            save_model(load_model(model), link)
        with pytest.raises(OutputError, match="exists already"):
            write_text(text, "ours", force=False)
        save_model(load_model(model), link, force=True)
        write_text(text, "ours", force=True)
        assert not link.is_symlink()
        assert text.read_text() == "ours"
        assert victim.read_text() == "not ours"
        assert not (tmp_path / "nowhere").exists()


def test_a_name_for_a_moment_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("not ours")
    (tmp_path / f".out.{os.getpid()}.tmp").symlink_to(victim)
    with replacing(tmp_path / "out") as file:
        file.write(b"ours")
    assert victim.read_text() == "not ours"
    assert (tmp_path / "out").read_bytes() == b"ours"


def test_a_file_with_two_names_is_copied_before_it_is_added_to(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    os.link(first, second)
    with open_to_append(second) as file:
        file.write(b"2")
    assert (first.read_text(), second.read_text()) == ("1", "12")
    make_own(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_a_folder_inside_is_made_level_by_level(tmp_path: Path) -> None:
    make_folder(tmp_path / "a/b", tmp_path)
    (tmp_path / "a/c").symlink_to(tmp_path)
    with pytest.raises(OutputError, match="is a link"):
        make_folder(tmp_path / "a/c/d", tmp_path)
    assert not (tmp_path / "d").exists()
