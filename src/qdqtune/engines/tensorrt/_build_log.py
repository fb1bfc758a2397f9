"""Logs of builds on bounded disk space; one that can't be written spoils no build."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from qdqtune.graph._atomic_files import open_to_append
from qdqtune.records._errors import OutputError

_MOST_BYTES = 4 << 20


class BuildLog:
    """A log that is open; without a file, what is written is dropped.

    Args:
        file: Where it goes.
    """

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file = file
        self._room = max(0, _MOST_BYTES - file.tell()) if file is not None else 0

    def write(self, content: bytes) -> None:
        """Append, as long as there is room."""
        if self._file is not None and self._room:
            with contextlib.suppress(OSError):
                self._file.write(content[: self._room])
            self._room -= min(self._room, len(content))


@contextlib.contextmanager
def open_log(path: Path | None) -> Iterator[BuildLog]:
    """Open a log to append to it; None or a file that can't be opened is a log without a file."""
    with contextlib.ExitStack() as stack:
        file: IO[bytes] | None = None
        if path is not None:
            with contextlib.suppress(OSError, OutputError):
                file = stack.enter_context(open_to_append(path, buffering=0))
        yield BuildLog(file)
