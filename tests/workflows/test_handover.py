"""Every state in which a hand-over can be found: it never blocks a folder, and mixes no results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qdqtune.workflows.tuning._folder import JOURNAL, RunFolder
from tests.conftest import matmul_file

MODEL, DATA = "optimized_final.onnx", "optimized_final.onnx.data"
ORDER = (DATA, MODEL, "ranges.json", "placement.json", "summary.json")
OLD = dict.fromkeys((MODEL, "ranges.json", "placement.json", "summary.json"), b"old")
HOW: list[dict[str, bool]] = [{}, {"restart": True}, {"force": True}]


def result(*, external: bool, quantized: bool = True) -> dict[str, bytes]:
    """The files of a result, as a run stages them."""
    files = {MODEL: b"the model", "placement.json": b"{}"}
    if external:
        files[DATA] = b"its weights"
    if quantized:
        files["ranges.json"] = b"{}"
    names = {name.partition(".")[0]: name for name in files if name != DATA}
    weights = files.get(DATA, b"")
    sha256 = hashlib.sha256(files[MODEL] + weights).hexdigest()
    files["summary.json"] = json.dumps({"files": names, "final_sha256": sha256}).encode()
    return files


NEW = result(external=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with an old result, in which a new one is committed and waits."""
    run = tmp_path / "run"
    put(run, OLD | {JOURNAL: b""})
    put(run / ".handover", NEW)
    return run


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return matmul_file(tmp_path)


def put(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def in_place(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ORDER if os.path.lexists(run / name)}


def opened(run: Path, model: Path, **how: Any) -> None:
    with RunFolder(run, model, **how):
        assert not os.path.lexists(run / ".handover")


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "quantized"])
def test_a_kill_before_any_step_leaves_the_whole_new_result(
    run: Path, model: Path, external: bool, quantized: bool, tmp_path: Path
) -> None:
    new = result(external=external, quantized=quantized)
    for steps in range(len(ORDER) + 1):
        for left_in_folder in ({}, {"names.json": b"[]"}):
            shutil.rmtree(run)
            put(run, {DATA: b"old", **OLD, JOURNAL: b""})
            put(run / ".handover", new | left_in_folder)
            for name in ORDER[:steps]:  # as hand-overs go
                if name in new:
                    os.replace(run / ".handover" / name, run / name)
                else:
                    (run / name).unlink()
            opened(run, model)
            assert in_place(run) == new


def garbage_names(run: Path) -> None:
    (run / ".handover/names.json").write_bytes(b"\xff[garbage")


def names_outside(run: Path) -> None:
    names = ["../victim", str(run.parent / "victim"), "/etc/passwd", MODEL]
    (run / ".handover/names.json").write_text(json.dumps(names))


def not_sound(run: Path) -> None:
    (run / ".handover" / MODEL).write_bytes(b"other bytes")


def gone(run: Path) -> None:
    (run / ".handover/placement.json").unlink()


def linked(run: Path) -> None:
    (run / ".handover/placement.json").unlink()
    (run / ".handover/placement.json").symlink_to(run.parent / "victim")


def a_pipe(run: Path) -> None:
    (run / ".handover/summary.json").unlink()
    os.mkfifo(run / ".handover/summary.json")


def a_folder_inside(run: Path) -> None:
    (run / ".handover/ranges.json").unlink()
    (run / ".handover/ranges.json").mkdir()


def deep(run: Path) -> None:
    (run / ".handover/summary.json").write_text("[" * 100_000)


def says_names_outside(run: Path) -> None:
    summary = json.loads(NEW["summary.json"])
    summary["files"] = {"a": "../victim", "b": str(run.parent / "victim"), "c": ["x"]}
    (run / ".handover/summary.json").write_text(json.dumps(summary))


def no_summary(run: Path) -> None:
    (run / ".handover/summary.json").unlink()


def empty(run: Path) -> None:
    shutil.rmtree(run / ".handover")
    (run / ".handover").mkdir()


def a_file(run: Path) -> None:
    shutil.rmtree(run / ".handover")
    (run / ".handover").write_bytes(b"x")


def a_link(run: Path) -> None:
    (run / ".handover").rename(run.parent / "elsewhere")
    (run / ".handover").symlink_to(run.parent / "elsewhere")


def a_dangling_link(run: Path) -> None:
    shutil.rmtree(run / ".handover")
    (run / ".handover").symlink_to(run.parent / "nowhere")


STATES: list[tuple[Callable[[Path], None], dict[str, bytes]]] = [
    (garbage_names, NEW), (names_outside, NEW), (not_sound, OLD), (gone, OLD), (linked, OLD),
    (a_pipe, OLD), (a_folder_inside, OLD), (deep, OLD), (says_names_outside, OLD),
    (no_summary, OLD), (empty, OLD), (a_file, OLD), (a_link, OLD), (a_dangling_link, OLD),
]  # fmt: skip


@pytest.mark.parametrize("how", HOW, ids=["resume", "restart", "force"])
@pytest.mark.parametrize(
    ("damage", "expected"), STATES, ids=lambda each: getattr(each, "__name__", "")
)
def test_whatever_state_a_hand_over_is_in_the_folder_can_be_used(
    run: Path,
    model: Path,
    damage: Callable[[Path], None],
    expected: dict[str, bytes],
    how: dict[str, bool],
) -> None:
    victim = run.parent / "victim"
    victim.write_bytes(b"not of this run")
    damage(run)
    opened(run, model, **how)
    assert in_place(run) == expected
    assert victim.read_bytes() == b"not of this run"
    if (run.parent / "elsewhere").exists():
        assert set(os.listdir(run.parent / "elsewhere")) == set(NEW)
