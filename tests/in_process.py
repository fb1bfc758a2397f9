"""Engines without processes of their own: the start of a worker takes longer than its work.

Most tests ask what is done with measurements and outputs, not how an engine is isolated. For them
the simulated engine and, in `make test`, ONNX Runtime, which calibrates, answer in the test's
process, through the same server and the same JSON. Other engines, and tests that use the fixture
``worker_processes``, have real processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from qdqtune.engines import _hosts, _worker_main
from qdqtune.engines import _registry as registry
from qdqtune.engines._process import ChildProcess, FailureKind, WorkerFailure
from qdqtune.engines._worker_main import Server
from qdqtune.graph import _shapes, _validity
from qdqtune.graph._atomic_files import open_to_append

# Variables and stderr are those of the whole process.
_one_at_a_time = threading.Lock()


class InProcessChild:
    """Has the interface of `ChildProcess`; limits of time and memory are not enforced.

    Those of several workers take turns.
    """

    def __init__(
        self, engine: str, environment: Mapping[str, str], log_path: Path | None = None, *_: object
    ) -> None:
        self._server = Server(engine)
        self._environment = environment
        self._log: io.TextIOWrapper | None = None
        if log_path is not None:
            self._log = io.TextIOWrapper(open_to_append(log_path), line_buffering=True)
        self._number = 0

    @property
    def pid(self) -> int:
        raise AssertionError("a test about processes needs the fixture `worker_processes`")

    def request(self, op: str, _timeout_s: float, **arguments: Any) -> Any:
        self._number += 1
        with (
            _one_at_a_time,
            contextlib.redirect_stderr(self._log or io.StringIO()),
            _variables(self._environment),
        ):
            line = self._server.answer({"number": self._number, "op": op, **arguments})
        reply = json.loads(line)
        if "result" not in reply:
            raise WorkerFailure(reply["error"], FailureKind.ERROR)
        return reply["result"]

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    kill = interrupt = close


@contextlib.contextmanager
def _variables(given: Mapping[str, str]) -> Iterator[None]:
    """As `mock.patch.dict`, which copies all of the environment and takes longer than an answer."""
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def use_in_process_engines(*names: str) -> None:
    """From here on, workers of these engines are no processes."""
    here = set(map(registry.worker_class, names))

    def start_child(engine: str, *arguments: Any) -> ChildProcess | InProcessChild:
        return (InProcessChild if engine in here else ChildProcess)(engine, *arguments)

    _hosts.ChildProcess = start_child  # type: ignore[assignment,misc]
    # A worker's memory is given back by looking at all of it, which here is that of all tests.
    _worker_main._give_memory_back = lambda: None


@contextlib.contextmanager
def real_processes() -> Iterator[None]:
    """Every engine has a process of its own."""
    with mock.patch.object(_hosts, "ChildProcess", ChildProcess):
        yield


@contextlib.contextmanager
def unguarded_inference() -> Iterator[None]:
    """Shapes are inferred in this process, as on systems without fork.

    A copy of a process that has imported all tests takes much longer than what it infers.
    """

    def call(action: Callable[[], bytes], _room_bytes: int = 0) -> bytes | None:
        return _validity._tried(action)

    with (
        mock.patch.object(_shapes, "call_guarded", call),
        mock.patch.object(_validity, "call_guarded", call),
    ):
        yield
