"""The process between a parent and its worker: makes sure that nothing outlives the worker.

Killing a process group misses processes that started their own session, as daemons do. On Linux the
orphans of a *subreaper*'s descendants become its children, whatever their session. The supervisor
is a subreaper; it only waits, so nothing that an engine does can bring it down.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

from qdqtune.resources import end_with_parent

END = signal.SIGUSR1
"""Signal that tells a supervisor to end the worker, everything it started, and itself."""

_PR_SET_CHILD_SUBREAPER = 36
_STANDARD_STREAMS = 3
_ALL_GONE_WITHIN_S = 1.5
_LOOK_AGAIN_S = 0.02


def supervise(parent: int) -> None:
    """Fork a worker and supervise it; returns only in the child, which becomes the worker.

    Must be called before any thread is started. On systems other than Linux there is no supervisor:
    there it returns in this process.

    Args:
        parent: The process that started this one; supervisor and worker end when it does.
    """
    if sys.platform != "linux":
        end_with_parent(parent)
        return
    # From here on signals only interrupt `_watch`; those of the terminal are for the parent.
    ours = {END, signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    end_with_parent(parent, END)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        end_with_parent(supervisor)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    # The parent reads the worker's end from these pipes, so they must not be open here.
    os.closerange(_STANDARD_STREAMS, _highest_descriptor() + 1)
    _end_as(_watch(worker))


def _watch(worker: int) -> int:
    """Waits for the worker to end or for the order to end it; returns a Popen-style exit code."""
    code: int | None = None
    while code is None:
        if signal.sigwait({END, signal.SIGCHLD}) == END:
            code = -signal.SIGKILL
        for pid, status in _ended():
            if pid == worker:
                code = os.waitstatus_to_exitcode(status)
    deadline = time.monotonic() + _ALL_GONE_WITHIN_S
    while _has_children() and time.monotonic() < deadline:
        for pid in _children():
            # Processes of other users, and those that just ended, can't be killed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_AGAIN_S)
    return code


def _ended() -> Iterator[tuple[int, int]]:
    """Yield children that have ended, with their status, each once."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _has_children() -> bool:
    for _ in _ended():
        pass
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> Iterator[int]:
    """Yield the children of this process. When they are killed, their children take their place."""
    own = str(os.getpid())
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                # After the program's name, which may contain anything: state, parent, …
                if file.read().rpartition(b")")[2].split()[1].decode() == own:
                    yield int(name)


def _highest_descriptor() -> int:
    return max(map(int, os.listdir("/proc/self/fd")))


def _end_as(code: int) -> NoReturn:
    """Ends this process in the same way as the worker ended, so that the parent sees it."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the crash was the worker's
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code)
