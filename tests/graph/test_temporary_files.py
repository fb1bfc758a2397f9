"""Temporary folders and files go away with their owner, however that ends."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qdqtune.graph import _atomic_files as temporary_files
from qdqtune.graph._atomic_files import TemporaryFolder, remove_abandoned, replacing
from qdqtune.records._errors import OutputError

OWNER = """
import sys
from pathlib import Path
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._atomic_files import replacing
place = Path(sys.argv[1])
folder = TemporaryFolder(place)
(folder.path / "sub").mkdir()
(folder.path / "sub" / "weights.bin").write_bytes(bytes(1000))
(folder.path / "link").symlink_to(place / "mine.txt")
with replacing(place / "result.json") as file:
    file.write(b"half")
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporary_files, "_swept", set())


@contextmanager
def owner(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is writing a file and has a temporary folder."""
    argv = [sys.executable, "-c", OWNER, str(place)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("kept")
    place = tmp_path / "place"
    place.mkdir()
    mine = {"mine.txt", "qdqtune-results", ".qdqtune-0123abcd", "result.json.tmp"}
    (place / "mine.txt").write_text("mine")
    (place / "qdqtune-results").mkdir()
    (place / ".qdqtune-0123abcd").mkdir()  # our pattern, but nobody locked it
    (place / ".qdqtune-0123abcd" / "kept.txt").write_text("kept")
    (place / "result.json.tmp").write_text("mine")
    # Links under our names lead somewhere else; a FIFO must not be waited for.
    (place / ".qdqtune-aaaaaaaa.lock").symlink_to(outside / "kept.txt")
    (place / ".qdqtune-aaaaaaaa").symlink_to(outside)
    os.mkfifo(place / ".qdqtune-bbbbbbbb.tmp")
    mine |= {".qdqtune-aaaaaaaa.lock", ".qdqtune-aaaaaaaa", ".qdqtune-bbbbbbbb.tmp"}
    with owner(place) as process:
        os.kill(process.pid, signal.SIGKILL)
    assert len(names(place) - mine) == 3
    with TemporaryFolder(place):
        pass
    assert names(place) == mine
    assert (place / "mine.txt").read_text() == "mine"
    assert (outside / "kept.txt").read_text() == "kept"
    assert (place / ".qdqtune-0123abcd" / "kept.txt").exists()


def test_what_a_living_process_uses_stays(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        before = names(tmp_path)
        assert len(before) == 3
        remove_abandoned(tmp_path)
        assert names(tmp_path) == before
        process.communicate()  # it goes on and ends
    assert names(tmp_path) == {"result.json"}
    assert (tmp_path / "result.json").read_bytes() == b"half"


def test_a_folder_taken_for_abandoned_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, taken = temporary_files.fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        real(descriptor, how)

    monkeypatch.setattr(temporary_files.fcntl, "flock", flock)
    with TemporaryFolder(tmp_path) as folder:
        assert folder.is_dir()
        assert folder.with_suffix(".lock").exists()
        assert taken != [folder.with_suffix(".lock")]


def test_a_folder_goes_with_its_object(tmp_path: Path) -> None:
    folder = TemporaryFolder(tmp_path)
    (folder.path / "file").write_text("x")
    assert folder.path.stat().st_mode & 0o777 == 0o700
    del folder
    assert names(tmp_path) == set()


def test_an_interrupt_leaves_nothing_beside_the_output(tmp_path: Path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "out.json") as file:
            file.write(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == set()


def test_a_place_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="nowhere could not be written: No such file"):
        TemporaryFolder(tmp_path / "nowhere")


INSIDE_OURS = {
    "engines/_onnxruntime.py",
    "workflows/_compare.py",
    "workflows/_sample_provider.py",
    "workflows/_claims.py",
    "autotune/_tuned_model.py",
    "calibration/_output_error.py",
}
"""They make folders inside folders of ours, which go with those."""


def test_nobody_else_makes_temporary_files() -> None:
    source = Path(temporary_files.__file__).parents[1]
    found = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Attribute(value=ast.Name(id="tempfile"), attr=name):
                    if name != "tempdir":
                        found.add(str(file.relative_to(source)))
                case ast.ImportFrom(module="tempfile"):
                    found.add(str(file.relative_to(source)))
    assert found == INSIDE_OURS
