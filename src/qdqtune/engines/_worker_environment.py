"""What a parent and its worker share besides requests: variables, arrays, and output."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from qdqtune.graph._atomic_files import TemporaryFolder, open_to_append, writing
from qdqtune.records._errors import OutputError
from qdqtune.records._untrusted_files import open_plain

SCRATCH = "QDQTUNE_SCRATCH"
"""Variable that names the worker's temporary folder."""
PLANS = "QDQTUNE_PLANS"
"""Variable that names the folder in which built engines are kept for other workers."""
CORES = "QDQTUNE_CORES"
"""Variable with the numbers of the cores that the worker may run on; unset if it may use all."""
LOGS = "QDQTUNE_LOGS"
"""Variable that names the folder for logs; unset if logs are not kept."""
OPENING = "QDQTUNE_OPENING"
"""Variable with the number of the process, if a comparison uses several."""

_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")
_MARK = "=== qdqtune: "
_BEGIN, _END = f"{_MARK}building ", f"{_MARK}built in "
_MOST_LINES = 400

_TAIL_BYTES = 64 * 1024
_LOG_BYTES = 8 * 1024 * 1024
_MESSAGE_LINES = 12


def scratch_folder() -> Path:
    """Return the folder for an engine's temporary files; outside a worker, one of this process."""
    return Path(os.environ.get(SCRATCH) or _own_scratch().path)


def stay_on_cores() -> None:
    """Move this process to the cores that it is restricted to, if any."""
    cores = {int(each) for each in os.environ.get(CORES, "").split(",") if each}
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def plans_folder() -> Path | None:
    """Return the folder in which built engines outlive the worker; None if there is none."""
    folder = os.environ.get(PLANS)
    return Path(folder) if folder else None


@functools.cache
def _own_scratch() -> TemporaryFolder:
    return TemporaryFolder()


def log_of(model: str | os.PathLike[str], engine: str) -> Path | None:
    """Return the log file of an engine for one model; None if logs are not kept.

    Args:
        model: The model file; models with the same file name share a log.
        engine: The engine's name.
    """
    folder = os.environ.get(LOGS)
    if not folder:
        return None
    path = Path(folder, engine)
    path.mkdir(parents=True, exist_ok=True)
    return path / f"{_NOT_IN_NAMES.sub('_', Path(model).stem)}.log"


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Writes named arrays.

    Raises:
        DiskError: The file can't be written.
        TypeError: An array has a type that is neither a number nor text.
    """
    entries: dict[str, npt.NDArray[Any]] = {}
    dtypes = []
    for index, (name, value) in enumerate(arrays.items()):
        array = np.asarray(value, order="C")
        is_custom = hasattr(ml_dtypes, array.dtype.name)
        dtypes.append(array.dtype.name if is_custom else "")
        if is_custom:
            array = array.view(f"u{array.dtype.itemsize}")
        elif array.dtype.kind == "O":
            array = array.astype(np.str_)
        elif array.dtype.kind != "U" and array.dtype.isbuiltin != 1:
            raise TypeError(f"'{name}' has type {array.dtype}, which no tensor can have")
        entries[f"array{index}"] = array
    entries["names"] = np.array(list(arrays), dtype=np.str_)
    entries["dtypes"] = np.array(dtypes, dtype=np.str_)
    with writing(path), open(path, "wb") as file:
        np.savez(file, **entries)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Reads what ``write_arrays`` wrote."""
    with np.load(path, allow_pickle=False) as archive:
        arrays: dict[str, npt.NDArray[Any]] = {}
        for index, (name, dtype) in enumerate(
            zip(archive["names"], archive["dtypes"], strict=True)
        ):
            array = archive[f"array{index}"]
            arrays[str(name)] = array.view(str(dtype)) if dtype else array
        return arrays


@contextlib.contextmanager
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
        with contextlib.suppress(OSError):
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


class OutputTail:
    """Reads a pipe to its end in a thread, so that the child never blocks on a full one.

    Args:
        stream: The reading end; closed when it ends.
        log_path: File that gets the first bytes, up to a limit; appended to.
    """

    def __init__(self, stream: IO[bytes], log_path: Path | None = None) -> None:
        self._stream = stream
        self._log_path = log_path
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="qdqtune-drain", daemon=True)
        self._thread.start()

    def finish(self, timeout_s: float = 2.0) -> None:
        """Waits for the end of the stream, with a timeout: a stray grandchild may hold it open."""
        self._thread.join(timeout_s)

    def tail(self, lines: int = _MESSAGE_LINES) -> str:
        """Returns the last lines, fit for a terminal: control characters are replaced."""
        with self._lock:
            text = bytes(self._tail).decode("utf-8", errors="replace")
        last = [line for line in text.strip().splitlines() if not line.startswith(_MARK)][-lines:]
        return "\n".join("".join(c if c.isprintable() else "?" for c in line) for line in last)

    def _read(self) -> None:
        with self._stream, contextlib.ExitStack() as stack:
            log: IO[bytes] | None = None
            room = 0
            if self._log_path is not None:
                # A log that cannot be written must not stop the draining.
                with contextlib.suppress(OSError, OutputError):
                    log = stack.enter_context(open_to_append(self._log_path, buffering=0))
                    room = max(0, _LOG_BYTES - log.tell())
            while chunk := self._stream.read1(1 << 16):  # type: ignore[attr-defined]
                with self._lock:
                    self._tail += chunk
                    del self._tail[:-_TAIL_BYTES]
                if log is not None and room:
                    with contextlib.suppress(OSError):
                        log.write(chunk[:room])
                    room -= min(room, len(chunk))
