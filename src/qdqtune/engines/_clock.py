"""The clock of timed runs, and the time that a process spent waiting for CPU cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

_COARSEST_STEP_NS = 20_000
_WATCHED_NS = 20_000_000

_THREADS = Path("/proc/self/task")


@lru_cache(maxsize=1)
def thread_clock_is_fine() -> bool:
    """Check the resolution of the thread clock: in some sandboxes it moves in steps of 10 ms."""
    end = time.perf_counter_ns() + _WATCHED_NS
    first = last = time.thread_time_ns()
    steps = 0
    while time.perf_counter_ns() < end:
        now = time.thread_time_ns()
        if now != last:
            steps += 1
            last = now
    return steps > 0 and (last - first) / steps <= _COARSEST_STEP_NS


class RunClock:
    """Times runs by the calling thread's CPU time, or by wall time.

    Args:
        on_one_thread: Whether whole runs execute on the calling thread.

    Attributes:
        now_ns: The clock in use.
    """

    def __init__(self, *, on_one_thread: bool) -> None:
        self.now_ns: Callable[[], int] = time.perf_counter_ns
        if on_one_thread and thread_clock_is_fine():
            self.now_ns = time.thread_time_ns

    def use_wall_time(self) -> None:
        """Switch to wall time."""
        self.now_ns = time.perf_counter_ns

    def samples_ms(self, run: Callable[[], object], runs: int) -> list[float]:
        """Return the milliseconds of each run; again if they are too short for the thread clock."""
        samples = self._timed(run, runs)
        if min(samples, default=1.0) <= 0.0:
            self.use_wall_time()
            samples = self._timed(run, runs)
        return samples

    def _timed(self, run: Callable[[], object], runs: int) -> list[float]:
        now_ns = self.now_ns
        samples: list[float] = []
        for _ in range(runs):
            start = now_ns()
            run()
            samples.append((now_ns() - start) / 1e6)
        return samples


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
