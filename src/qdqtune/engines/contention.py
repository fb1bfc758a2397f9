"""Time that this process spent waiting for CPU cores."""

from __future__ import annotations

import os
from pathlib import Path

_THREADS = Path("/proc/self/task")


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
