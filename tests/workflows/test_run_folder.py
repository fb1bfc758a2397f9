"""What a run's folder may hold that no run has made, and what of it a run replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtune.records._errors import EngineError, OutputError
from qdqtune.workflows.tuning._folder import JOURNAL, SUBGRAPHS, RunFolder
from tests.conftest import matmul_file

CACHE = "autotune_cache.json"
DAMAGED = "autotune_cache.damaged.json"
RAW = "optimized_raw.onnx"
SUBGRAPH = "subgraphs/subgraph_0003.none.onnx"
MINE = "subgraphs/mine.onnx"
WRITTEN = (
    SUBGRAPH,
    "subgraphs/conversion_float_1x3.pair.onnx",
    "subgraphs/weights.bin",
    "subgraphs/weights.index",
    "subgraphs/.subgraph_0003.full.onnx.1.tmp",
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return matmul_file(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder in which there was a run."""
    path = tmp_path / "run"
    fill(path, JOURNAL, "summary.json")
    return path


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def files_in(folder: Path) -> set[str]:
    hidden = {".lock"}
    found = (file for file in folder.rglob("*") if file.is_file() and file.name not in hidden)
    return {str(file.relative_to(folder)) for file in found}


def opened(run: Path, model: Path, *, subgraph: bool = True, **options: bool) -> None:
    with RunFolder(run, model, folders=(SUBGRAPHS,) if subgraph else (), **options) as folder:
        folder.begin()


@pytest.mark.parametrize("subgraph", [False, True])
def test_force_removes_the_subgraphs_and_nothing_else_in_their_folder(
    subgraph: bool, run: Path, model: Path
) -> None:
    fill(run, RAW, CACHE, DAMAGED, MINE, *WRITTEN)
    opened(run, model, subgraph=subgraph, force=True)
    assert files_in(run) == {MINE}


def test_force_leaves_no_empty_folder(run: Path, model: Path) -> None:
    fill(run, CACHE, *WRITTEN)
    opened(run, model, subgraph=False, force=True)
    assert not (run / SUBGRAPHS).exists()


@pytest.mark.parametrize("evidence", [CACHE, DAMAGED, SUBGRAPH, None])
def test_a_restart_sets_subgraphs_aside_with_their_run(
    evidence: str | None, run: Path, model: Path
) -> None:
    fill(run, MINE, *([evidence] if evidence else []))
    opened(run, model, subgraph=False, restart=True)
    here = set() if evidence else {MINE}
    aside = {JOURNAL, "summary.json", *([MINE, evidence] if evidence else [])}
    assert files_in(run) == here | {f"earlier/1/{name}" for name in aside}


@pytest.mark.parametrize("others", [RAW, f"{RAW}.data", MINE])
@pytest.mark.parametrize("began", [JOURNAL, ".lock"])
def test_what_no_subgraph_run_made_is_not_replaced_by_one(
    others: str, began: str, model: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fill(run, began, others)
    with pytest.raises(OutputError, match=r"exists already, but no autotune_cache\.json"):
        opened(run, model)
    assert (run / others).read_text() == others
    opened(run, model, subgraph=False)  # region mode has no such files
    assert (run / others).read_text() == others


@pytest.mark.parametrize("evidence", [CACHE, DAMAGED, SUBGRAPH])
def test_where_there_was_a_subgraph_run_another_goes_on(
    evidence: str, run: Path, model: Path
) -> None:
    fill(run, RAW, MINE, evidence)
    opened(run, model)
    assert files_in(run) == {JOURNAL, "summary.json", RAW, MINE, evidence}


def test_a_subgraph_run_that_was_killed_before_its_first_subgraph_goes_on(
    run: Path, model: Path
) -> None:
    (run / SUBGRAPHS).mkdir()
    opened(run, model)
    assert (run / SUBGRAPHS).is_dir()


def test_the_log_of_an_engine_that_does_not_start_is_kept(tmp_path: Path, model: Path) -> None:
    run = tmp_path / "run"

    def fail() -> None:
        with RunFolder(run, model) as folder:
            folder.begin()
            fill(run, "logs/engine.log")
            raise EngineError("It does not start.", "")

    for _ in range(2):  # what is kept is in nobody's way
        with pytest.raises(EngineError):
            fail()
        assert files_in(run) == {"logs/engine.log"}
