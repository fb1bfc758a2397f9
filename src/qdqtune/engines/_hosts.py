"""Where the process of a worker runs: on this machine, or on another one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from qdqtune.engines._process import ChildProcess
from qdqtune.engines._worker_environment import CORES


class EngineProcess(Protocol):
    """A process that runs an engine, as a worker sees it; see `ChildProcess`."""

    @property
    def pid(self) -> int:
        """Its process id, on its machine."""
        ...

    def request(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        """Send a request and return the result.

        Raises:
            WorkerFailure: If there is none.
        """
        ...

    def interrupt(self) -> None:
        """End the process from another thread; the pending request fails."""
        ...

    def close(self) -> None:
        """End the process once it is idle."""
        ...

    def kill(self) -> None:
        """End the process, and everything that it started."""
        ...


class Host(Protocol):
    """A place where workers start their processes."""

    @property
    def name(self) -> str:
        """What it is called in messages and records."""
        ...

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        ...

    def start(
        self,
        worker_class: str,
        variables: Mapping[str, str],
        log_path: Path | None,
        memory_bytes: int | None,
    ) -> EngineProcess:
        """Start a process.

        Args:
            worker_class: The engine, as ``module:Class``.
            variables: Environment variables to set in addition.
            log_path: File on this machine for what it prints; None keeps only the end.
            memory_bytes: Its memory limit; None sets no limit.

        Raises:
            WorkerFailure: If the host is gone.
        """
        ...


@dataclass(frozen=True)
class LocalHost:
    """This machine, or a part of it that no other worker uses.

    Attributes:
        cores: The cores that the process may run on; all if empty.
        variables: Environment variables of the process, such as those that select its devices.
        memory_bytes: The most that a process may take, if several share the machine's memory.
        name: What it is called in messages and records.
    """

    cores: Sequence[int] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    name: str = "this machine"

    is_here: bool = field(default=True, init=False)

    def start(
        self,
        worker_class: str,
        variables: Mapping[str, str],
        log_path: Path | None,
        memory_bytes: int | None,
    ) -> ChildProcess:
        """See `Host`."""
        pinned = {CORES: ",".join(map(str, self.cores))} if self.cores else {}
        limits = [each for each in (memory_bytes, self.memory_bytes) if each is not None]
        own = {**variables, **self.variables, **pinned}
        return ChildProcess(worker_class, own, log_path, min(limits, default=None))


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
