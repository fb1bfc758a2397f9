"""What runs on a node of a Ray cluster: an engine's process, and the files that it opens.

Actors of this class are created by `qdqtune.engines._ray_cluster`. Only JSON and bytes come and go.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import uuid
from pathlib import Path

from qdqtune._version import __version__
from qdqtune.engines import _registry as registry
from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._hosts import LocalHost, usable_cores
from qdqtune.engines._process import ChildProcess, FailureKind, WorkerFailure
from qdqtune.engines._worker_environment import PLANS, SCRATCH
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.records._errors import QdqtuneError
from qdqtune.resources import current_limits

_CLOCK_LIMIT = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq")


def describe(engine: str) -> str:
    """Return what this node offers to an engine, as JSON.

    Args:
        engine: The engine.
    """
    entry = registry.entry(engine)
    try:
        status = registry.available(engine)
        reason = "" if status.usable or not entry.measures else status.reason
    except QdqtuneError as error:
        reason = error.what
    clock = ""
    with contextlib.suppress(OSError):
        clock = _CLOCK_LIMIT.read_text().strip()
    return json.dumps(
        {
            "version": __version__,
            "python": platform.python_version(),
            "reason": reason,
            "cores": len(usable_cores()),
            "gpus": len(find_gpus().gpus) if entry.needs_gpu else 0,
            "clock limit": clock,
        }
    )


class EngineNode:
    """Runs the processes of a worker elsewhere on this node.

    Args:
        cores: Position of its cores among those that the node may use; None for all of them.
        memory_part: The number of workers that share the node's memory.
    """

    def __init__(self, cores: list[int] | None, memory_part: int) -> None:
        own = usable_cores()
        pinned = [own[position] for position in cores] if cores is not None else []
        memory = current_limits().memory_bytes
        part = None if memory is None else memory // memory_part
        self._host = LocalHost(pinned, memory_bytes=part)
        self._folder = TemporaryFolder()
        self._processes: dict[int, ChildProcess] = {}
        self._started = 0

    def start(self, worker_class: str, variables: str) -> int:
        """Start a process; return its number.

        Args:
            worker_class: The engine, as ``module:Class``.
            variables: Environment variables to set in addition, as JSON.
        """
        scratch = self._folder.path / "scratch"
        plans = self._folder.path / "plans"
        for folder in (scratch, plans):
            folder.mkdir(exist_ok=True)
        own = {SCRATCH: str(scratch), "TMPDIR": str(scratch), PLANS: str(plans)}
        process = self._host.start(worker_class, {**json.loads(variables), **own}, None, None)
        self._started += 1
        self._processes[self._started] = process
        return self._started

    def write(self, name: str, offset: int, content: bytes) -> None:
        """Write a part of a file; the first part replaces a file of that name.

        Args:
            name: Where, within the node's folder.
            offset: Position in the file.
            content: What to write.
        """
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if offset == 0:  # models that are open may be using the old one
            path.unlink(missing_ok=True)
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(offset)
            file.write(content)

    def remove(self, name: str) -> None:
        """Remove a file.

        Args:
            name: Where, within the node's folder.
        """
        self._path(name).unlink(missing_ok=True)

    def request(self, number: int, op: str, timeout_s: float, arguments: str) -> tuple[str, bytes]:
        """Make a request to the process.

        Args:
            number: Number of the process.
            op: The request.
            timeout_s: Its time limit.
            arguments: The others, as JSON; paths are names within the node's folder.

        Returns:
            The answer as JSON: a result or a failure; and the content of its file, if it has one.
        """
        given = json.loads(arguments)
        for key in ("path", "feeds"):
            if key in given:
                given[key] = str(self._path(given[key]))
        written = None
        if "outputs" in given:
            written = self._folder.path / f"{uuid.uuid4().hex}.npz"
            given["outputs"] = str(written)
        process = self._processes.get(number)
        if process is None:
            return _failed("the engine's process has ended", FailureKind.CRASH, "")
        try:
            result = process.request(op, timeout_s, **given)
            content = written.read_bytes() if written is not None else b""
        except WorkerFailure as failure:
            return _failed(failure.what, failure.kind, failure.hint)
        except QdqtuneError as error:  # such as a full disk, which is this node's
            return _failed(f"{error.what} {error.hint}", FailureKind.HOST, "")
        finally:
            if written is not None:
                written.unlink(missing_ok=True)
        return json.dumps({"result": result, "pid": process.pid}), content

    def interrupt(self, number: int) -> None:
        """End a process while it answers a request."""
        if (process := self._processes.get(number)) is not None:
            process.interrupt()

    def end(self, number: int) -> None:
        """End an idle process."""
        if (process := self._processes.pop(number, None)) is not None:
            process.close()

    def close(self) -> None:
        """End all processes, and remove all files."""
        for number in list(self._processes):
            self.end(number)
        self._folder.cleanup()

    def _path(self, name: str) -> Path:
        path = Path(os.path.normpath(self._folder.path / name))
        if not path.is_relative_to(self._folder.path):
            raise ValueError(f"{name} lies outside of the node's folder")
        return path


def _failed(what: str, kind: FailureKind, details: str) -> tuple[str, bytes]:
    return json.dumps({"failure": what, "kind": kind.value, "details": details}), b""
