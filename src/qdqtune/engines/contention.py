"""How long this process was kept from the cores that it was ready to use."""

from __future__ import annotations

import os
from pathlib import Path

_THREADS = Path("/proc/self/task")


def waited_for_cpu_s() -> float:
    """Seconds that the threads of this process have waited for a core, all together.

    The scheduler's own account, by Linux; it goes on in this process only, not in programs that
    are started from it. 0.0 where there is none.
    """
    waited_ns = 0
    try:
        for thread in os.listdir(_THREADS):
            # The time on a core, the time in the queue for one, the turns.
            _, queued_ns, _ = (_THREADS / thread / "schedstat").read_text().split()
            waited_ns += int(queued_ns)
    except (OSError, ValueError):  # another system, a sandbox, or a thread that ended just now
        return 0.0
    return waited_ns / 1e9
