"""A child process that answers in JSON lines: all the ways it can end, and parsers for answers."""

from __future__ import annotations

import contextlib
import enum
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from qdqtune.engines._interface import InputSpec
from qdqtune.engines._supervisor import END
from qdqtune.engines._worker_environment import OutputTail
from qdqtune.graph._atomic_files import DiskError
from qdqtune.records._errors import EngineError
from qdqtune.records._measurement import MOST_MS, LayerTime
from qdqtune.records._untrusted_files import (
    list_in,
    number_in,
    object_in,
    parse_json,
    text_in,
    whole_in,
)
from qdqtune.resources import is_out_of_memory, out_of_memory_text

_MAX_REPLY_BYTES = 64 * 1024 * 1024
_LONGEST_POLL_S = 3600.0  # the system counts in 32 bits
_GRACE_S = 2.0
# A json.py in the current working directory must not be imported.
_START = """\
import sys
sys.path = [path for path in sys.path if path]
from qdqtune.engines._supervisor import supervise
engine, *numbers = sys.argv[1:]
parent, commands, replies, memory_bytes = map(int, numbers)
supervise(parent)
from qdqtune.engines._worker_main import main
main(engine, commands, replies, memory_bytes or None)
"""

_spawners: dict[int, ThreadPoolExecutor] = {}
_spawners_lock = threading.Lock()
_MOST_SECONDS = MOST_MS  # a block has many runs


class FailureKind(enum.Enum):
    """How a request failed."""

    ERROR = "error"
    """The engine refused or raised; the child lives on."""
    CRASH = "crash"
    """The child ended before it answered."""
    TIMEOUT = "timeout"
    """The child did not answer in time and was killed."""
    MEMORY = "memory"
    """The child exceeded its memory limit, and was killed if it had not ended by itself."""
    LOST = "lost"
    """The model was open in a child that is gone."""
    HOST = "host"
    """The machine of the child, or what ran it there, is gone: no model is to blame."""


class WorkerFailure(EngineError):
    """A request without a result.

    Args:
        what: What happened, one sentence.
        kind: How it failed.
        details: The last lines the child printed, or the child's own traceback.
    """

    def __init__(self, what: str, kind: FailureKind, details: str = "") -> None:
        super().__init__(what, details)
        self.kind = kind


def _spawn(argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Starts a child from a thread that lives as long as this process.

    Linux sends a child its parent-death signal when the *thread* that started it ends, so a child
    started from a short-lived thread would be killed while its parent is alive.
    """
    with _spawners_lock:
        # Keyed by pid: after a fork the executor's thread does not exist in the copy.
        if os.getpid() not in _spawners:
            _spawners.clear()
            _spawners[os.getpid()] = ThreadPoolExecutor(1, thread_name_prefix="qdqtune-spawner")
        spawner = _spawners[os.getpid()]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(argv, **options)

    started = spawner.submit(start)
    try:
        return started.result()
    except BaseException:
        started.add_done_callback(_kill_unwanted)
        raise


def _kill_unwanted(started: Future[subprocess.Popen[bytes]]) -> None:
    if not started.cancelled() and started.exception() is None:
        child = started.result()
        child.kill()
        child.wait()


class ChildProcess:
    """A started worker.

    Args:
        engine: The engine to create inside the child, as ``module:Class``.
        environment: Variables set in the child in addition to the inherited ones.
        log_path: Where the child's output is kept, up to a limit; None keeps only its end.
        memory_bytes: Its memory limit; None sets no limit.
    """

    def __init__(
        self,
        engine: str,
        environment: Mapping[str, str],
        log_path: Path | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._memory_bytes = memory_bytes
        commands_read, commands_write = os.pipe()
        replies_read, replies_write = os.pipe()
        self._commands = io.FileIO(commands_write, "w")
        self._replies = io.FileIO(replies_read)
        numbers = (os.getpid(), commands_read, replies_write, memory_bytes or 0)
        try:
            self._process = _spawn(
                [sys.executable, "-c", _START, engine, *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(commands_read, replies_write),
                env={**os.environ, **environment},
                # Ctrl-C in the terminal reaches only the parent; the whole group can be killed.
                start_new_session=True,
            )
        except BaseException:
            self._commands.close()
            self._replies.close()
            raise
        finally:
            os.close(commands_read)
            os.close(replies_write)
        assert self._process.stderr is not None
        self._drain = OutputTail(self._process.stderr, log_path)
        self._number = 0
        self._ended = False
        self._pid = self._process.pid

    @property
    def pid(self) -> int:
        """Process id of the worker; until it has answered, that of its starter."""
        return self._pid

    def request(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        """Sends one request and waits for its answer.

        Raises:
            DiskError: The disk is full, which is not the model's fault.
            WorkerFailure: The engine raised (the child lives on), crashed or was too slow.
        """
        self._number += 1
        line = json.dumps({"number": self._number, "op": op, **arguments}).encode() + b"\n"
        deadline = time.monotonic() + timeout_s
        try:
            while line:
                line = line[self._commands.write(line) :]
            reply = self._receive(deadline)
        except TimeoutError:
            self.kill()
            what = f"the engine gave no answer to '{op}' within {timeout_s:g} s and was stopped"
            if op == "open":
                what += " (--timeout allows more)"
            raise WorkerFailure(what, FailureKind.TIMEOUT, self._drain.tail()) from None
        except (EOFError, OSError, ValueError) as error:
            ending = self._ending()
            details = self._drain.tail() or str(error)
            what = f"the engine's process {ending} during '{op}'"
            if is_out_of_memory(details):
                what += f": it {out_of_memory_text(self._memory_bytes)}"
                raise WorkerFailure(what, FailureKind.MEMORY, details) from None
            raise WorkerFailure(what, FailureKind.CRASH, details) from None
        except BaseException:
            # Ctrl-C while waiting: the pending answer must not be read by a later request.
            self.kill()
            raise
        self._pid = reply.get("pid", self._pid)
        if "result" in reply:
            return reply["result"]
        match reply.get("disk"):
            case [int() | None as number, str() as target]:
                # Only the parent can name the folder's owner.
                full = OSError(number, os.strerror(number)) if number is not None else OSError()
                raise DiskError(full, Path(target))
        if is_out_of_memory(reply["error"]):
            # Its memory use is unknown now; the next model should find all of the memory free.
            self.kill()
            what = f"the engine {out_of_memory_text(self._memory_bytes)} during '{op}'"
            raise WorkerFailure(what, FailureKind.MEMORY, reply["error"])
        raise WorkerFailure(reply["error"], FailureKind.ERROR)

    def interrupt(self) -> None:
        """Ends the child from another thread than the one that waits for its answer."""
        if not self._ended:
            self._process.send_signal(END if sys.platform == "linux" else signal.SIGKILL)

    def close(self) -> None:
        """Ends the child: first by closing its command pipe, then by force."""
        if not self._ended:
            self._commands.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            self.kill()

    def kill(self) -> None:
        """Kills the child and every process that it has started."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.send_signal(END)
            self._process.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._drain.finish()
        self._commands.close()
        self._replies.close()

    def _receive(self, deadline: float) -> dict[str, Any]:
        line = bytearray()
        poller = select.poll()
        poller.register(self._replies, select.POLLIN)
        while not line.endswith(b"\n"):
            left_s = max(0.0, deadline - time.monotonic())
            if not poller.poll(min(left_s, _LONGEST_POLL_S) * 1000):
                if left_s <= _LONGEST_POLL_S:
                    raise TimeoutError
                continue
            chunk = self._replies.read(1 << 20)
            if not chunk:
                raise EOFError("the child closed its pipe")
            line += chunk
            if len(line) > _MAX_REPLY_BYTES:
                raise ValueError("the child's answer is too long")
        answer, _, more = bytes(line).partition(b"\n")
        if more:
            raise ValueError("the child answered more than once")
        reply = parse_json(answer, "the child's answer")
        if not isinstance(reply, dict) or reply.get("number") != self._number:
            raise ValueError("the child answered something else")
        if "result" not in reply and not (reply.get("error") and isinstance(reply["error"], str)):
            raise ValueError("the child's answer is neither a result nor an error")
        return reply

    def _ending(self) -> str:
        """Terminates a child that stopped answering; returns how it had ended."""
        try:
            status: int | None = self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            status = None
        self.kill()
        if status is None:
            return "stopped answering"
        if status == -signal.SIGKILL:
            return "was ended by SIGKILL, which is how a system ends those that take all memory"
        if status < 0:
            names = {each.value: each.name for each in signal.Signals}
            shorter = " (a file that it was reading has become shorter)"
            why = shorter if status == -signal.SIGBUS else ""
            return f"was ended by {names.get(-status, f'signal {-status}')}{why}"
        return f"exited with code {status}"


def read_opened(reply: Any) -> tuple[int, tuple[InputSpec, ...], float]:
    """Read the number of a session, the model's inputs, and the seconds that opening it took."""
    value = object_in(reply, "it")
    inputs = tuple(
        _input(object_in(each, "an input")) for each in list_in(value["inputs"], "inputs")
    )
    return whole_in(value["session"], "session"), inputs, read_seconds(value)


def read_seconds(reply: Any) -> float:
    """Read the seconds that the engine took."""
    return number_in(object_in(reply, "it")["seconds"], "seconds", 0.0, _MOST_SECONDS)


def read_samples(reply: Any) -> tuple[list[float], float, float]:
    """Read unchecked samples, the seconds they took, and the seconds spent waiting for a core."""
    value = object_in(reply, "it")
    contended_s = number_in(value["contended_s"], "contended_s", 0.0, _MOST_SECONDS)
    return list_in(value["samples_ms"], "samples_ms"), read_seconds(value), contended_s


def read_layers(reply: Any) -> tuple[list[LayerTime], float]:
    """Read layers, and the seconds that it took to list them."""
    value = object_in(reply, "it")
    layers = [_layer(object_in(each, "a layer")) for each in list_in(value["layers"], "layers")]
    return layers, read_seconds(value)


def _input(value: dict[str, Any]) -> InputSpec:
    dims = list_in(value["shape"], "shape")
    for dim in dims:
        if not (dim is None or isinstance(dim, str)):
            whole_in(dim, "a dim")
    return InputSpec(text_in(value["name"], "name"), text_in(value["dtype"], "dtype"), tuple(dims))


def _layer(value: dict[str, Any]) -> LayerTime:
    number_in(value["ms"], "ms", 0.0, MOST_MS)
    return LayerTime.from_dict(value)
