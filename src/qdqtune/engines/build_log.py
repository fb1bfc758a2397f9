"""Marks and finds what an engine prints while it builds a model, in its worker's log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qdqtune.engines.worker_environment import LOGS
from qdqtune.records.untrusted_files import open_plain

_MARK = "=== qdqtune: "
_BEGIN, _END = f"{_MARK}building ", f"{_MARK}built in "
_MOST_LINES = 400


@contextmanager
def building(model: str | os.PathLike[str]) -> Iterator[None]:
    """Mark what the engine in this process prints as being about a model.

    Without a log nothing is marked. Output after a failure, such as its traceback, belongs to it.

    Args:
        model: The model file.
    """
    _mark(f"{_BEGIN}{Path(model).name}")
    start_s = time.perf_counter()
    yield
    _mark(f"{_END}{time.perf_counter() - start_s:.3f} s")


def _mark(line: str) -> None:
    if os.environ.get(LOGS):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def is_mark(line: str) -> bool:
    """Whether a line is a mark, not printed by the engine."""
    return line.startswith(_MARK)


class BuildLog:
    """The log of an engine's workers, model by model.

    Args:
        path: The log file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._model: str | None = None
        self._said: dict[str, list[str]] = {}

    def about(self, model: str) -> list[str]:
        """Return what was printed during the latest build of a model, as far as it can be read.

        Args:
            model: Name of the model file.
        """
        with suppress(OSError):
            self._read_on()
        return self._said.get(model, [])

    def _read_on(self) -> None:
        """Read new lines, up to the last complete one."""
        with open_plain(self._path) as file:
            file.seek(self._offset)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            if line.startswith(_BEGIN):
                self._model = line.removeprefix(_BEGIN)
                self._said[self._model] = []
            elif line.startswith(_END) and self._model is not None:
                self._said[self._model].append(line.removeprefix(_MARK))
                self._model = None
            elif self._model is not None and len(self._said[self._model]) < _MOST_LINES:
                self._said[self._model].append(line)
