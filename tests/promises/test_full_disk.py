"""A full disk is an error that names the file; it is never a candidate's fault."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.promises.conftest import ROOT
from tests.promises.models import two_convs
from tests.silence import without_progress

SCRIPT = """
mkdir -p "$PLACE" && mount -t tmpfs -o size=$SIZE none "$PLACE" || exit 99
"$@"
code=$?
find "$PLACE" -mindepth 1 -not -name .lock -printf 'left %P\\n'
exit $code
"""
COMMANDS = {
    "convert": ["convert", "model.onnx", "--to", "fp16", "-o", "out/made.onnx"],
    "quantize": ["quantize", "model.onnx", "-o", "out/made.onnx"],
    "shapes": ["shapes", "model.onnx", "--set", "x:2x32x16x16", "-o", "out/made.onnx"],
    "tune": ["tune", "model.onnx", "--engine", "simulated", "-o", "out/run"],
    "bench": ["bench", "model.onnx", "--runs", "9"],
}

SLOW = pytest.mark.slow


@functools.cache
def may_mount() -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        return False


def run_on_small_disk(
    folder: Path, place: Path, size: str, command: list[str]
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, while another one is a disk of its own."""
    if not may_mount():
        pytest.skip("nothing may be mounted here")
    onnx.save(two_convs(), folder / "model.onnx")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PLACE": str(place),
        "SIZE": size,
        "TMPDIR": str(folder / "tmp"),
    }
    (folder / "tmp").mkdir()
    script = ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", sys.executable, "-m", "qdqtune", *command]
    return subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "name",
    ["convert", *(pytest.param(each, marks=SLOW) for each in ("tune", "quantize", "shapes"))],
)
def test_a_full_output_folder_is_named(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_on_small_disk(tmp_path, out, "16k", COMMANDS[name])
    assert done.returncode == 1, done.stderr
    assert re.search(rf"error: {out}/\S+ could not be written: No space left", done.stderr)
    assert "MB left. Free some space, or write to another disk." in done.stderr
    assert "Traceback" not in done.stderr
    if name != "tune":  # which leaves what it needs to go on
        assert "left" not in done.stdout


@pytest.mark.parametrize("name", ["bench", pytest.param("convert", marks=SLOW)])
def test_a_full_folder_for_temporary_files_is_told_apart(name: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    done = run_on_small_disk(tmp_path, tmp_path / "tmp", "8k", COMMANDS[name])
    assert done.returncode == 1, done.stderr
    pattern = rf"error: {tmp_path}/tmp/\S+ could not be written: No space left"
    assert re.search(pattern, done.stderr)
    assert "set TMPDIR to a folder on another disk" in done.stderr
    assert "Traceback" not in done.stderr
    assert "left" not in done.stdout
    assert list((tmp_path / "out").iterdir()) == []


def test_output_that_can_not_be_printed_is_an_error() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "qdqtune", "doctor"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert without_progress(done.stderr).startswith(
        "error: The output could not be written: No space left"
    )
    assert "Exception ignored" not in done.stderr
