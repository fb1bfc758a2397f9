"""After a kill nothing stays, neither for temporary files nor beside outputs, once it ran again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.promises.conftest import ROOT
from tests.promises.models import two_convs

COMMAND = """
import os, signal, sys
from qdqtune.cli.main import main
last, places = int(sys.argv[1]), (os.getcwd(), os.environ["TMPDIR"])
changes = 0

def hook(event, arguments):
    global changes
    if event == "open":
        writes = isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes or not str(arguments[0]).startswith(places):
            return
    elif event not in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
        return
    changes += 1
    if changes == last:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
code = main(sys.argv[2:])
print(changes)
sys.exit(code)
"""
COMMANDS = {
    "quantize": ["quantize", "model.onnx", "-o", "out.onnx", "--force"],
    "convert": ["convert", "model.onnx", "--to", "fp16", "-o", "out.onnx", "--force"],
    "bench": ["bench", "model.onnx", "--runs", "9"],
}
KEPT = {"model.onnx", "out.onnx"}


def run(folder: Path, name: str, last: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, up to the change of a folder that its process does not live to see."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "TMPDIR": str(temporary),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    return subprocess.run(
        [sys.executable, "-c", COMMAND, str(last), *COMMANDS[name]],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip


def leftovers(folder: Path) -> set[str]:
    found = {path.name for path in folder.iterdir()} - KEPT - {"tmp"}
    return found | {path.name for path in (folder / "tmp").iterdir()}


def kills(folder: Path, name: str, most: int) -> None:
    onnx.save(two_convs(), folder / "model.onnx")
    for _ in range(2):  # a second run finds what the first has kept, and changes less
        whole = run(folder, name)
        assert whole.returncode == 0, whole.stderr
        assert leftovers(folder) == set()
    moments = range(1, int(whole.stdout.split()[-1]) + 1)
    assert len(moments) > 3
    left = []
    for moment in random.Random(name).sample(moments, min(most, len(moments))):
        assert run(folder, name, moment).returncode == -signal.SIGKILL
        left.append(leftovers(folder))
        assert run(folder, name).returncode == 0
        assert leftovers(folder) == set(), f"killed at change {moment}"
    assert any(left)  # else nothing was there to be removed


def test_a_kill_leaves_nothing_that_the_next_run_does_not_remove(tmp_path: Path) -> None:
    kills(tmp_path, "convert", 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_kills_leave_nothing_that_the_next_run_does_not_remove(name: str, tmp_path: Path) -> None:
    kills(tmp_path, name, 8)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", COMMANDS)
def test_every_kill_leaves_nothing_that_the_next_run_does_not_remove(
    name: str, tmp_path: Path
) -> None:
    kills(tmp_path, name, 1000)
