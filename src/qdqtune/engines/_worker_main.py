"""The child process that runs an engine.

Started by ``qdqtune.engines._process`` only, under ``qdqtune.engines._supervisor``. Requests and
answers are JSON lines on two private pipes; whatever an engine prints goes to stderr, which the
parent drains.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtune.engines._clock import waited_for_cpu_s
from qdqtune.engines._interface import SessionOptions, VirtualTime
from qdqtune.engines._worker_environment import read_arrays, scratch_folder, write_arrays
from qdqtune.engines._worker_log import building
from qdqtune.graph._disk_errors import full_disk
from qdqtune.resources._limits import set_memory_limit

if TYPE_CHECKING:
    from qdqtune.engines._interface import Engine, Session

_MAX_MESSAGE = 4000
_Request = dict[str, Any]


class Server:
    """Answers requests with one engine and the models open in it.

    Args:
        engine: The engine as ``module:Class``; made at the first request, so that an engine that
            cannot be imported is an answer like any other.
    """

    def __init__(self, engine: str) -> None:
        self._engine_path = engine
        self._engine: Engine | None = None
        self._clock_s: Callable[[], float] = time.perf_counter
        self._sessions: dict[int, Session] = {}
        self._opened = 0
        self._waited_s = 0.0
        self._operations: dict[str, Callable[[_Request], Any]] = {
            "info": self._info,
            "open": self._open,
            "feed": self._feed,
            "run": self._run,
            "time": self._time,
            "layers": self._layers,
            "close": self._close,
        }

    def answer(self, request: _Request) -> bytes:
        """Returns the line that answers a request; an engine's exception is an answer too."""
        reply = {"number": request["number"], "pid": os.getpid()}
        try:
            line = json.dumps({**reply, "result": self._operations[request["op"]](request)})
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
            message = "".join(c if c.isprintable() or c == "\n" else "?" for c in message)
            full = full_disk(error, scratch_folder())
            disk = [full.number, str(full.target)] if full is not None else None
            line = json.dumps({**reply, "error": message, "disk": disk})
        return line.encode() + b"\n"

    def _info(self, request: _Request) -> Any:
        return self._get_engine().info(SessionOptions.from_dict(request["options"])).to_dict()

    def _open(self, request: _Request) -> Any:
        engine = self._get_engine()
        options = SessionOptions.from_dict(request["options"])
        start = self._clock_s()
        with building(request["path"]):
            session = engine.open(request["path"], options)
        seconds = self._clock_s() - start
        self._opened += 1
        self._sessions[self._opened] = session
        inputs = [asdict(spec) for spec in session.inputs]
        return {"session": self._opened, "inputs": inputs, "seconds": seconds}

    def _feed(self, request: _Request) -> Any:
        feeds = read_arrays(Path(request["feeds"]))
        start = self._clock_s()
        self._sessions[request["session"]].set_feeds(feeds)
        seconds = self._clock_s() - start
        self._contended_s()  # what was waited for so far is not the timed runs'
        return {"seconds": seconds}

    def _run(self, request: _Request) -> Any:
        outputs = self._sessions[request["session"]].run(read_arrays(Path(request["feeds"])))
        write_arrays(Path(request["outputs"]), outputs)

    def _time(self, request: _Request) -> Any:
        session = self._sessions[request["session"]]
        gc.disable()  # a collection in the middle of a run would be charged to the model
        try:
            start = self._clock_s()
            samples = session.time_runs(request["runs"])
            seconds = self._clock_s() - start
        finally:
            gc.enable()
        return {
            "samples_ms": [float(sample) for sample in samples],
            "seconds": seconds,
            # What happens on this machine does not touch simulated samples.
            "contended_s": 0.0 if isinstance(self._engine, VirtualTime) else self._contended_s(),
        }

    def _contended_s(self) -> float:
        """How long the engine has waited for a core since this was asked last.

        Not asked right before a block, whose first runs would pay for it.
        """
        before_s, self._waited_s = self._waited_s, waited_for_cpu_s()
        return max(0.0, self._waited_s - before_s)

    def _layers(self, request: _Request) -> Any:
        start = self._clock_s()
        layers = self._sessions[request["session"]].layer_times(request["runs"])
        seconds = self._clock_s() - start
        _give_memory_back()
        return {"layers": [layer.to_dict() for layer in layers], "seconds": seconds}

    def _close(self, request: _Request) -> Any:
        self._sessions.pop(request["session"]).close()
        _give_memory_back()

    def _get_engine(self) -> Engine:
        if self._engine is None:
            module, _, name = self._engine_path.partition(":")
            engine = getattr(importlib.import_module(module), name)()
            if isinstance(engine, VirtualTime):
                self._clock_s = engine.clock_s
            self._engine = engine
            gc.freeze()  # what was imported stays, so collections need not look at it
        return self._engine


def main() -> None:
    """Serves until the command pipe ends."""
    parser = argparse.ArgumentParser(prog="qdqtune.engines._worker_main")
    parser.add_argument("--engine", required=True, help="module:Class of the engine")
    parser.add_argument("--commands", type=int, required=True, help="descriptor to read from")
    parser.add_argument("--replies", type=int, required=True, help="descriptor to write to")
    parser.add_argument("--memory", type=int, help="bytes that this process may take")
    arguments = parser.parse_args()

    set_memory_limit(arguments.memory)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # whatever prints to stdout, natively or not, prints to stderr
    for descriptor in (arguments.commands, arguments.replies):
        os.set_inheritable(descriptor, False)

    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    watcher = threading.Thread(target=_read_commands, args=(arguments.commands, lines), daemon=True)
    watcher.start()
    server = Server(arguments.engine)
    while True:
        answer = server.answer(json.loads(lines.get()))
        while answer:
            answer = answer[os.write(arguments.replies, answer) :]


def _read_commands(descriptor: int, lines: queue.SimpleQueue[bytes]) -> None:
    """Queues requests; ends the process with the pipe, also while an engine is busy."""
    with open(descriptor, "rb", closefd=False) as commands:
        for line in commands:
            lines.put(line)
    os._exit(0)


def _give_memory_back() -> None:
    """Returns freed memory to the system: sessions come and go by the hundred."""
    gc.collect()
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # only glibc has it
            return
