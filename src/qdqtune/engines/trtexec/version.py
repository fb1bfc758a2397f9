"""Which trtexec there is, and of which TensorRT: its options differ from version to version."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple

from qdqtune.resources.parent_death import end_with_parent

PROGRAM = "trtexec"
_BANNER = re.compile(r"&&&& \w+ TensorRT\.trtexec \[TensorRT v(\d+)\]")
_TOLD = re.compile(r"\[I\] TensorRT version: (\d+)\.(\d+)\.(\d+)")
# From 10 on the number has two digits for the minor version.
_FIRST_LONG = 100_000
_HELP_LIMIT_S = 120.0
# The whole help has about 25 kB.
_HELP_BYTES = 1 << 20


class Version(NamedTuple):
    """A version of TensorRT."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, self))


def find_program(path: str) -> str:
    """The program's full path.

    Args:
        path: As the user says it; empty is the one on PATH.

    Raises:
        ValueError: If it isn't there, or can't be started.
    """
    found = shutil.which(path or PROGRAM)
    if found is None and path:
        raise ValueError(f"there is no program {path}")
    if found is None:
        raise ValueError(
            f"{PROGRAM} is not on PATH: put it there, or say where with the option path"
        )
    return os.path.abspath(found)


def version_of(program: str) -> Version:
    """The version of TensorRT that a program is from; asked for once.

    Raises:
        ValueError: If it doesn't tell.
    """
    seen = os.stat(program)
    return _asked(program, seen.st_mtime_ns, seen.st_size)


def parse_version(text: str) -> Version | None:
    """The version that the first line of a program's output names; None if it names none."""
    told = _TOLD.search(text)
    if told is not None:
        return Version(*map(int, told.groups()))
    banner = _BANNER.search(text)
    if banner is None:
        return None
    number = int(banner[1])
    if number >= _FIRST_LONG:
        return Version(number // 10_000, number // 100 % 100, number % 100)
    return Version(number // 1000, number // 100 % 10, number % 100)


@functools.cache
def _asked(program: str, modified_ns: int, size: int) -> Version:
    """There is no option for it; the shortest way is the help, whose first line tells it."""
    del modified_ns, size  # they are here so that another program at the same place is asked again
    try:
        text = _first_printed([program, "--help"])
    except (OSError, TimeoutError) as error:
        raise ValueError(f"{program} can't be asked for its version: {error}") from None
    version = parse_version(text)
    if version is None:
        said = next((line.strip() for line in text.splitlines() if line.strip()), "nothing")
        raise ValueError(f"{program} doesn't tell its version, it says: {said[:300]}")
    return version


def _first_printed(command: Sequence[str]) -> str:
    """The beginning of what a command prints; the command is ended when there is more.

    Raises:
        OSError: If it can't be started.
        TimeoutError: If it takes too long.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )
    assert child.stdout is not None
    timer = threading.Timer(_HELP_LIMIT_S, _end, [child])
    timer.start()
    try:
        with child.stdout as stream:
            text = stream.read(_HELP_BYTES).decode(errors="replace")
        is_late = not timer.is_alive()
    finally:
        timer.cancel()
        _end(child)
        child.wait()
    if is_late:
        raise TimeoutError(f"it gave no answer in {_HELP_LIMIT_S:g} s")
    return text


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a child, and what it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
