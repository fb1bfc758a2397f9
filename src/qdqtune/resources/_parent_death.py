"""Child processes that terminate with their parent, however it ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Loaded here: nothing can be loaded between fork and exec.
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(parent: int | None = None, by: int = signal.SIGKILL) -> None:
    """Ask Linux to signal this process when its parent dies; a no-op on other systems.

    Args:
        parent: The parent's id, if it may already be dead; then this process ends at once.
        by: The signal.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(0)
