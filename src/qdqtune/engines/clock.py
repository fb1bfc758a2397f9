"""Whether the CPU time of a thread is known finely enough to time a run with it."""

from __future__ import annotations

import time
from functools import lru_cache

_COARSEST_STEP_NS = 20_000
_WATCHED_NS = 20_000_000


@lru_cache(maxsize=1)
def thread_clock_is_fine() -> bool:
    """Watches the clock tick: sandboxes exist where it moves in steps of ten milliseconds."""
    end = time.perf_counter_ns() + _WATCHED_NS
    first = last = time.thread_time_ns()
    steps = 0
    while time.perf_counter_ns() < end:
        now = time.thread_time_ns()
        if now != last:
            steps += 1
            last = now
    return steps > 0 and (last - first) / steps <= _COARSEST_STEP_NS
