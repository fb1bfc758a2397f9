"""Promise: a hang or a crash costs one request, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdqtune.engines.isolated import FailureKind, OpenModel, WorkerFailure
from qdqtune.testing.bench import Bench
from qdqtune.testing.models import tower_feeds

_SOON_S = 0.1
_NO_TIME_S = 1e-4
_GONE_WITHIN_S = 5.0


class SurvivesFailures:
    """The end of the engine's process, in every way."""

    def test_a_hang_is_stopped(self, bench: Bench) -> None:
        """A request past its limit is a TIMEOUT; its processes are gone; the next request works."""
        path = bench.tower(32)
        with bench.opened(bench.tower()):
            pids = _family(bench)
            with pytest.raises(WorkerFailure) as caught:
                bench.worker.open(path, timeout_s=_NO_TIME_S)
        assert caught.value.kind is FailureKind.TIMEOUT, f"it was a {caught.value.kind}"
        _check_gone(pids)
        if not bench.engine.runs:
            with bench.opened(path):
                return
        measured = bench.worker.measure(path, tower_feeds(), blocks=1, runs=1)
        assert measured.ok, f"after a hang, a new process should measure: {measured.error}"

    def test_a_crash_is_a_failure(self, bench: Bench) -> None:
        """When the process ends, the request fails, open models are LOST, and the next opens."""
        with bench.opened(bench.tower()) as model:
            pids = _family(bench)
            os.kill(pids[0], signal.SIGKILL)
            _check_crashed(bench, model)
        _check_gone(pids)
        with bench.opened(bench.tower()) as model:
            pids = _family(bench)
            os.kill(pids[0], signal.SIGSTOP)  # so that the request is under way when it ends
            threading.Timer(_SOON_S, os.kill, (pids[0], signal.SIGKILL)).start()
            _check_crashed(bench, model)
        _check_gone(pids)


def _check_crashed(bench: Bench, model: OpenModel) -> None:
    crash = _failure_of(bench, model)
    assert crash.kind is FailureKind.CRASH, f"it was a {crash.kind}: {crash}"
    lost = _failure_of(bench, model)
    assert lost.kind is FailureKind.LOST, f"it was a {lost.kind}: {lost}"


def _failure_of(bench: Bench, model: OpenModel) -> WorkerFailure:
    with pytest.raises(WorkerFailure) as caught:
        bench.worker.run(model, tower_feeds())
    return caught.value


def _check_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + _GONE_WITHIN_S
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, (
            f"processes {alive} outlived the engine's. Where the system is not Linux, whatever an "
            "engine starts must stay in its process group (no `start_new_session`)"
        )
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:  # it ended just now, or the system has no such files
        return not Path("/proc/self").exists()


def _family(bench: Bench) -> list[int]:
    """The engine's process and, where the system tells them, those that it has started."""
    pid = bench.worker.pid
    assert pid is not None
    return [pid, *_children(pid)]


def _children(pid: int) -> Iterator[int]:
    for listed in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended
            for child in map(int, listed.read_text().split()):
                yield child
                yield from _children(child)
