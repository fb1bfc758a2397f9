"""The child process that runs an engine.

Started by ``qdqtune.engines._process`` only, under ``qdqtune.engines._supervisor``. Requests and
answers are JSON lines on two private pipes; whatever an engine prints goes to stderr, which the
parent drains.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import pkgutil
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qdqtune.engines._interface import SessionOptions, VirtualTime
from qdqtune.engines._worker_environment import (
    building,
    read_arrays,
    scratch_folder,
    stay_on_cores,
    write_arrays,
)
from qdqtune.graph._atomic_files import full_disk
from qdqtune.resources import set_memory_limit

if TYPE_CHECKING:
    from qdqtune.engines._interface import Engine, Session

_MAX_MESSAGE = 4000
_THREADS = Path("/proc/self/task")
_Request = dict[str, Any]
_T = TypeVar("_T")


class Server:
    """Answers requests with one engine and the models open in it.

    Args:
        engine: The engine as ``module:Class``; created at the first request, so that a failed
            import is reported like any other error.
    """

    def __init__(self, engine: str) -> None:
        self._engine_path = engine
        self._engine: Engine | None = None
        self._clock_s: Callable[[], float] = time.perf_counter
        self._sessions: dict[int, Session] = {}
        self._opened = 0
        self._waited_s = 0.0

    def answer(self, request: _Request) -> bytes:
        """Returns the line that answers a request; an engine's exception is also an answer."""
        reply = {"number": request["number"], "pid": os.getpid()}
        try:
            line = json.dumps({**reply, "result": self._result(request)})
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
            message = "".join(c if c.isprintable() or c == "\n" else "?" for c in message)
            full = full_disk(error, scratch_folder())
            disk = [full.number, str(full.target)] if full is not None else None
            line = json.dumps({**reply, "error": message, "disk": disk})
        return line.encode() + b"\n"

    def _result(self, request: _Request) -> Any:
        match request["op"]:
            case "info":
                options = SessionOptions.from_dict(request["options"])
                return self._get_engine().info(options).to_dict()
            case "open":
                return self._open(request["path"], SessionOptions.from_dict(request["options"]))
            case "close":
                self._sessions.pop(request["session"]).close()
                _give_memory_back()
                return None
        session = self._sessions[request["session"]]
        match request["op"]:
            case "run":
                outputs = session.run(read_arrays(Path(request["feeds"])))
                write_arrays(Path(request["outputs"]), outputs)
                return None
            case "feed":
                feeds = read_arrays(Path(request["feeds"]))
                _, seconds = self._timed(lambda: session.set_feeds(feeds))
                self._contended_s()  # waiting before the timed runs doesn't count
                return {"seconds": seconds}
            case "time":
                return self._time(session, request["runs"])
            case "layers":
                layers, seconds = self._timed(lambda: session.layer_times(request["runs"]))
                _give_memory_back()
                return {"layers": [layer.to_dict() for layer in layers], "seconds": seconds}
            case op:
                raise ValueError(f"there is no request '{op}'")

    def _open(self, path: str, options: SessionOptions) -> Any:
        engine = self._get_engine()
        with building(path):
            session, seconds = self._timed(lambda: engine.open(path, options))
        self._opened += 1
        self._sessions[self._opened] = session
        inputs = [asdict(spec) for spec in session.inputs]
        return {"session": self._opened, "inputs": inputs, "seconds": seconds}

    def _time(self, session: Session, runs: int) -> Any:
        gc.disable()  # a collection in the middle of a run would be charged to the model
        try:
            samples, seconds = self._timed(lambda: session.time_runs(runs))
        finally:
            gc.enable()
        return {
            "samples_ms": [float(sample) for sample in samples],
            "seconds": seconds,
            # Contention on this machine does not affect simulated samples.
            "contended_s": 0.0 if isinstance(self._engine, VirtualTime) else self._contended_s(),
        }

    def _timed(self, work: Callable[[], _T]) -> tuple[_T, float]:
        """Return what some work returns, and its seconds on the engine's clock."""
        start = self._clock_s()
        return work(), self._clock_s() - start

    def _contended_s(self) -> float:
        """Return how long the engine has waited for a core since the last call.

        Not called right before a block, where it would slow the first runs.
        """
        before_s, self._waited_s = self._waited_s, waited_for_cpu_s()
        return max(0.0, self._waited_s - before_s)

    def _get_engine(self) -> Engine:
        if self._engine is None:
            engine = pkgutil.resolve_name(self._engine_path)()
            if isinstance(engine, VirtualTime):
                self._clock_s = engine.clock_s
            self._engine = engine
            gc.freeze()  # imported modules stay, so collections can skip them
        return self._engine


def waited_for_cpu_s() -> float:
    """Return the total seconds that the threads of this process have waited for a core.

    The figure comes from Linux's scheduler and covers this process only, not programs started by
    it. 0.0 where it is not available.
    """
    waited_ns = 0
    try:
        for thread in os.listdir(_THREADS):
            # Time on a core, time in the run queue, number of time slices.
            _, queued_ns, _ = (_THREADS / thread / "schedstat").read_text().split()
            waited_ns += int(queued_ns)
    except (OSError, ValueError):  # another system, a sandbox, or a thread that just ended
        return 0.0
    return waited_ns / 1e9


def main(engine: str, commands: int, replies: int, memory_bytes: int | None) -> None:
    """Serves until the command pipe ends.

    Args:
        engine: ``module:Class`` of the engine.
        commands: Descriptor to read requests from.
        replies: Descriptor to write answers to.
        memory_bytes: Memory that this process may take; None for no limit.
    """
    set_memory_limit(memory_bytes)
    stay_on_cores()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # everything printed to stdout, natively or not, goes to stderr
    for descriptor in (commands, replies):
        os.set_inheritable(descriptor, False)

    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_commands, args=(commands, lines), daemon=True).start()
    server = Server(engine)
    while True:
        answer = server.answer(json.loads(lines.get()))
        while answer:
            answer = answer[os.write(replies, answer) :]


def _read_commands(descriptor: int, lines: queue.SimpleQueue[bytes]) -> None:
    """Queues requests; ends the process when the pipe closes, even while an engine is busy."""
    with open(descriptor, "rb", closefd=False) as commands:
        for line in commands:
            lines.put(line)
    os._exit(0)


def _give_memory_back() -> None:
    """Returns freed memory to the system, since hundreds of sessions are opened and closed."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # only glibc has it
            ctypes.CDLL(None).malloc_trim(0)
