"""Keeps the end of a child's output, in bounded memory and on bounded disk."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import IO

from qdqtune.engines.build_log import is_mark
from qdqtune.graph.atomic_files import open_to_append
from qdqtune.records.errors import OutputError

_TAIL_BYTES = 64 * 1024
_LOG_BYTES = 8 * 1024 * 1024
_MESSAGE_LINES = 12


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
        last = [line for line in text.strip().splitlines() if not is_mark(line)][-lines:]
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
