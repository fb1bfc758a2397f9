"""Ends what trtexec started if the process that started trtexec is killed.

trtexec itself ends with that process. But it may be a script that starts the real one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess


def guard_group() -> None:
    """Starts the guard, once. Only in a process that leads its group: others share theirs."""
    if os.name == "posix" and os.getpgrp() == os.getpid():
        with contextlib.suppress(OSError):
            _start(os.getpid())


@functools.cache
def _start(group: int) -> tuple[subprocess.Popen[bytes], int]:
    """A child that waits for the end of a pipe whose other end only this process has."""
    reading, writing = os.pipe()
    try:
        script = f"read -r _; kill -s KILL -- -{group}"
        guard = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return guard, writing
