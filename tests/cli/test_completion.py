"""Completion scripts, in the shells that they are for."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from qdqtune.cli._completion import SHELLS, script_for
from qdqtune.cli.main import main

Complete = Callable[[str], list[str]]

SETUP = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "bind 'set page-completions off'; bind 'set completion-query-items 999'; "
        "bind 'set show-all-if-ambiguous on'; source {script}",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; source {script}; LISTMAX=999; unsetopt prompt_cr",
    ),
}


def complete_in_fish(script: Path, line: str) -> list[str]:
    code = f"source {script}; complete -C {shlex.quote(line)}"
    found = _run(["fish", "--no-config", "-c", code], script)
    return [each.split("\t")[0].removeprefix("--engine=") for each in found]


def complete_in_terminal(shell: str, script: Path, line: str) -> list[str]:
    """Type a line and two tabs, and return the words that are shown."""
    command, setup = SETUP[shell]
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(script.parent)
        environment = {**os.environ, "TERM": "dumb", "HOME": str(script.parent), "PS1": ""}
        os.execvpe(shell, command, environment)
    try:
        # The quote tells the prompt from its echo.
        setup = f"stty columns 200 rows 200; {setup.format(script=script)}; PS1=re'ady> '\n"
        os.write(terminal, setup.encode())
        _read_until(terminal, "ready> ")
        os.write(terminal, f"{line}\t\t\x15echo do'ne'\n".encode())  # Ctrl-U empties the line
        return _read_until(terminal, "done\r\n").split()
    finally:
        os.close(terminal)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def _read_until(terminal: int, end: str) -> str:
    found, start = "", time.monotonic()
    while end not in found:
        assert time.monotonic() - start < 30.0, found
        if select.select([terminal], [], [], 0.1)[0]:
            found += os.read(terminal, 1 << 16).decode(errors="replace")
    return found


def _run(command: list[str], script: Path) -> list[str]:
    environment = {**os.environ, "HOME": str(script.parent)}
    done = subprocess.run(
        command, cwd=script.parent, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split("\n")


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest, tmp_path: Path) -> Complete:
    """Completes a line in a shell, where a file and a folder can be seen."""
    shell: str = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(script_for(shell))
    (tmp_path / "some_model.onnx").touch()
    (tmp_path / "some_folder").mkdir()
    in_shell = complete_in_fish if shell == "fish" else partial(complete_in_terminal, shell)
    return partial(in_shell, script)


@pytest.mark.parametrize(
    ("line", "expected", "others"),
    [
        ("qdqtune qu", {"quantize"}, {"tune"}),
        ("qdqtune tune --cali", {"--calibration_data", "--calibration_samples"}, {"--engine"}),
        ("qdqtune tune --preset ", {"quick", "default", "extensive"}, {"int8"}),
        ("qdqtune bench --engine on", {"onnxruntime"}, {"openvino"}),
        ("qdqtune bench --engine=open", {"openvino"}, {"onnxruntime"}),
        ("qdqtune completion ", {"bash", "zsh", "fish"}, {"--quiet"}),
    ],
)
def test_words_are_completed(
    complete: Complete, line: str, expected: set[str], others: set[str]
) -> None:
    found = complete(line)
    shown = " ".join(found)  # a single match is put into the line
    assert all(word in shown for word in expected), shown
    assert not others & set(found)


def test_files_are_completed_where_files_are_asked_for(complete: Complete) -> None:
    for line in ("qdqtune tune some_mo", "qdqtune tune m.onnx --pattern_cache some_mo"):
        assert "some_model.onnx" in " ".join(complete(line))
    folders = " ".join(complete("qdqtune tune m.onnx -o some_"))
    assert "some_folder" in folders
    assert "some_model" not in folders


def test_a_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script_for("bash")
    assert main(["completion", "csh"]) == 2
    assert "bash, zsh, fish" in capsys.readouterr().err
