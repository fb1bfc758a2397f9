"""Processes that end with the one that started them, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec there is no time for it.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Lets Linux signal this process when its parent dies; other systems have nothing like it.

    Args:
        parent: The parent, if it may have died already; then this process ends at once.
        by: The signal.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(0)
