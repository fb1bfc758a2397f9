"""Starts trtexec and reads what it says, in bounded memory and on bounded disk."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from qdqtune.graph.atomic_files import open_to_append
from qdqtune.records.errors import OutputError
from qdqtune.resources.parent_death import end_with_parent

_LOG_BYTES = 4 << 20
_LONGEST_LINE = 8000
_HEAD_LINES, _TAIL_LINES = 4000, 1000
_CHUNK = 1 << 16
_STAMP = r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] "
# Progress, which a verbose build has tens of thousands of lines of.
_PROGRESS = re.compile(rf"^{_STAMP}\[[VIW]\] ")
_TELLING = ("GPU Compute Time", "[E]", "[F]", "&&&& ", "TensorRT version")
# Two streams in one pipe: a message may begin, and end, in the middle of another's line.
_CUT = re.compile(rf"^(.+?)({_STAMP}\[[VIWEF]\] [^\n]*)\n((?!{_STAMP}|&&&& )[^\n]*)$", re.MULTILINE)
_GLUED = re.compile(rf"(?<=.)(?={_STAMP}\[[VIWEF]\] |&&&& (?:PASSED|FAILED) )")


@dataclass(frozen=True)
class Finished:
    """A call that has ended.

    Attributes:
        code: The exit code; negative if a signal ended it.
        text: What was printed, without lines about progress.
    """

    code: int
    text: str


def run_command(command: Sequence[str], log: Path | None = None) -> Finished:
    """Runs a command to its end.

    The child stays in this process's group, so that whoever ends the group ends it, too.

    Args:
        command: The program and its arguments.
        log: File that everything is appended to, up to a limit.

    Raises:
        OSError: If it can't be started.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent if sys.platform == "linux" else None,
    )
    kept = _Kept()
    try:
        assert child.stdout is not None
        with child.stdout as stream, _opened(log) as file:
            file.write(f"$ {shlex.join(command)}\n".encode())
            while chunk := stream.read1(_CHUNK):  # type: ignore[attr-defined]
                file.write(chunk)
                kept.add(chunk)
        code = child.wait()
        with _opened(log) as file:
            file.write(f"\n(exit code {code})\n\n".encode())
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
    return Finished(code, kept.text())


class _Kept:
    """The lines that matter; of very many, the first and the last."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._open = b""

    def add(self, chunk: bytes) -> None:
        *lines, self._open = (self._open + chunk).split(b"\n")
        self._open = self._open[:_LONGEST_LINE]
        for line in lines:
            self._keep(line)

    def text(self) -> str:
        self._keep(self._open)
        self._open = b""
        return _GLUED.sub("\n", _CUT.sub(r"\1\3\n\2", "\n".join((*self._head, *self._tail))))

    def _keep(self, raw: bytes) -> None:
        line = raw[:_LONGEST_LINE].decode(errors="replace").rstrip("\r")
        if _PROGRESS.match(line) and not any(word in line for word in _TELLING):
            return
        if len(self._head) < _HEAD_LINES:
            self._head.append(line)
        else:
            self._tail.append(line)


class _Log:
    """A log with a limit; one that can't be written spoils nothing."""

    def __init__(self, file: IO[bytes] | None) -> None:
        self._file = file
        self._room = max(0, _LOG_BYTES - file.tell()) if file is not None else 0

    def write(self, content: bytes) -> None:
        if self._file is not None and self._room:
            with contextlib.suppress(OSError):
                self._file.write(content[: self._room])
            self._room -= min(self._room, len(content))


@contextlib.contextmanager
def _opened(path: Path | None) -> Iterator[_Log]:
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        if path is not None:
            with contextlib.suppress(OSError, OutputError):
                file = stack.enter_context(open_to_append(path, buffering=0))
        yield _Log(file)
