"""Calls native code that may abort the process or exhaust memory in a forked copy of it.

ONNX's shape inference aborts on some models: a Slice of a tensor whose dim a Conv has made negative
is enough, which happens when an open dim is taken as 1. For others it allocates terabytes.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from qdqtune.resources.available_memory import private_bytes
from qdqtune.resources.limits import current_limits, set_memory_limit
from qdqtune.resources.parent_death import end_with_parent

_LIMIT_S = 120.0
_ROOM_BYTES = 1 << 30
_DONE = b"."


def call_guarded(action: Callable[[], bytes], room_bytes: int = _ROOM_BYTES) -> bytes | None:
    """Call a function in a forked copy of this process, which ends with it.

    Args:
        action: The function; it must not need other threads.
        room_bytes: The memory that it may take beyond this process's, within the limit of both.

    Returns:
        Its return value; None if it raised, crashed, took too much memory or did not finish in
        time.
    """
    if sys.platform != "linux":  # elsewhere a fork costs more than it saves, or does not exist
        return _tried(action)
    reading, writing = os.pipe()
    limits, parent = current_limits(), os.getpid()
    sizes = (limits.memory_bytes, private_bytes() + room_bytes)
    memory = min(size for size in sizes if size is not None)
    with warnings.catch_warnings():
        # Our threads wait for pipes; none holds a lock that the copy would need.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(action, writing, parent, memory)
    os.close(writing)
    try:
        answer = _read(reading, time.monotonic() + (limits.timeout_s or _LIMIT_S))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # it is done, late, or no longer needed
        os.waitpid(child, 0)
    return answer[:-1] if answer.endswith(_DONE) else None


def _answer(action: Callable[[], bytes], writing: int, parent: int, memory: int) -> NoReturn:
    """Run the action in the copy and exit."""
    try:
        end_with_parent(parent)
        set_memory_limit(memory)
        faulthandler.disable()  # its crash dump is not wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        answer = _tried(action)
        if answer is not None:
            with open(writing, "wb") as pipe:
                pipe.write(answer + _DONE)
    finally:
        os._exit(0)


def _tried(action: Callable[[], bytes]) -> bytes | None:
    try:
        return action()
    except Exception:  # anything that native code raises on an untrusted model
        return None


def _read(pipe: int, deadline: float) -> bytes:
    chunks = []
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(pipe, 1 << 20)
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)
