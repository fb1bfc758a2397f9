"""The process of a worker: started when it is needed, and again after it has ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qdqtune.engines._hosts import EngineProcess, Host
from qdqtune.engines._process import FailureKind, WorkerFailure


class WaitClock:
    """Sums the time in which at least one of several workers is waited for."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._waiting = 0
        self._since_s = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._waiting:
                self._since_s = time.monotonic()
            self._waiting += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._waiting -= 1
            if not self._waiting:
                self.total_s += time.monotonic() - self._since_s


class WorkerProcess:
    """The process of a worker; there is one at a time.

    Args:
        host: Where it runs.
        worker_class: The engine, as ``module:Class``.
        variables: Its environment variables in addition to the inherited ones.
        log_path: File for what it prints; None keeps only the end.
        memory_bytes: Its memory limit; None sets no limit.

    Attributes:
        host: Where it runs; another one holds from the next process on.
        variables: Its additional environment variables; changes hold from the next process on.
        clock: Sums the time for which callers wait; several can share one.
        on_host_lost: Called with the reason when the host is gone.
        child: The process; None while there is none.
        generation: How many were started.
    """

    def __init__(
        self,
        host: Host,
        worker_class: str,
        variables: Mapping[str, str],
        log_path: Path | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self.host = host
        self.variables = dict(variables)
        self.clock = WaitClock()
        self.on_host_lost: Callable[[str], None] = lambda _: None
        self.child: EngineProcess | None = None
        self.generation = 0
        self._worker_class = worker_class
        self._log_path = log_path
        self._memory_bytes = memory_bytes
        self._is_stopped = False
        self._lock = threading.Lock()

    def request(self, op: str, limit_s: float, arguments: Mapping[str, Any]) -> Any:
        """Make a request, in a new process if there is none.

        Raises:
            WorkerFailure: If there is no answer.
            KeyboardInterrupt: If it is stopped.
        """
        with self._lock:
            try:
                if not self._is_stopped:
                    child = self._started()
                if self._is_stopped:  # which may have come while it started
                    raise KeyboardInterrupt
                with self.clock:
                    return child.request(op, limit_s, **arguments)
            except WorkerFailure as failure:
                if failure.kind is not FailureKind.ERROR:
                    self.child = None
                if self._is_stopped:
                    raise KeyboardInterrupt from None
                if failure.kind is FailureKind.HOST:
                    self.on_host_lost(str(failure))
                raise
            except BaseException:
                if self.child is not None:
                    self.child.kill()
                    self.child = None
                raise

    def _started(self) -> EngineProcess:
        if self.child is None:
            self.child = self.host.start(
                self._worker_class, self.variables, self._log_path, self._memory_bytes
            )
            self.generation += 1
        return self.child

    def end(self) -> None:
        """End the process; the next request starts another one."""
        if self.child is not None:
            self.child.close()
            self.child = None

    def stop(self) -> None:
        """Make the request that another thread waits for, and all later ones, end in an interrupt.

        They raise KeyboardInterrupt, until `resume`.
        """
        self._is_stopped = True
        if (child := self.child) is not None:
            child.interrupt()

    def resume(self) -> None:
        """Take requests again after `stop`, in a new process."""
        if self._is_stopped:
            self.end()
        self._is_stopped = False
