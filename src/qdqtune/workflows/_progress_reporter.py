"""Timekeeping and progress events of a command."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from qdqtune.config import Callback
from qdqtune.engines._pool import WorkerPool
from qdqtune.engines._worker import Worker
from qdqtune.records._tuning import Seconds, TuneEvent

_logger = logging.getLogger(__name__)


class ProgressReporter:
    """Keeps time and reports every step.

    Args:
        callbacks: Called with every event.
        budget_s: The budget of the run in seconds; None for no limit.

    Attributes:
        workers: Processes whose time doesn't count as our own.
    """

    def __init__(self, callbacks: Sequence[Callback], budget_s: float | None = None) -> None:
        self.workers: list[Worker] = []
        self._pool: WorkerPool | None = None
        self._callbacks = callbacks
        self._budget_s = budget_s
        self._start = time.monotonic()
        self._search_start: float | None = None
        self._speedup = 1.0

    def watch(self, pool: WorkerPool) -> None:
        """Report what each worker of a pool does, whenever that changes."""
        self._pool = pool
        pool.listener = self._tell_workers

    def _tell_workers(self) -> None:
        if self._pool is not None and (doing := self._pool.doing):
            what, done = "; ".join(doing), sum(member.jobs for member in self._pool.members)
            self._emit(
                TuneEvent(
                    "workers", what, speedup=self._speedup, seconds=self.elapsed_s, done=done,
                    workers=doing,
                )
            )  # fmt: skip

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """Return the seconds left of the budget: negative if exceeded, infinite without one."""
        return math.inf if self._budget_s is None else self._budget_s - self.elapsed_s

    def search_begins(self) -> None:
        """Mark the start of the search, from which on benchmarks predict the remaining time."""
        self._search_start = time.monotonic()

    def tell(
        self,
        stage: str,
        message: str,
        *,
        benchmarks: int = 0,
        known: int = 0,
        planned: int | None = None,
        speedup: float | None = None,
        rest_s: float = 0.0,
    ) -> None:
        """Report a step.

        Args:
            stage: The current stage.
            message: What happened.
            benchmarks: Candidates timed so far.
            known: Candidates that earlier runs timed.
            planned: Expected number of candidates.
            speedup: Speedup of the best so far; None if it is the one reported last.
            rest_s: Expected seconds of everything after the search.
        """
        eta_s = None
        if self._search_start is not None and planned and benchmarks:
            each_s = (time.monotonic() - self._search_start) / benchmarks
            eta_s = max(0, planned - known - benchmarks) * each_s + rest_s
            eta_s = min(eta_s, max(0.0, self.left_s))
        self._speedup = self._speedup if speedup is None else speedup
        _logger.info("%s: %s", stage, message)
        self._emit(
            TuneEvent(
                stage, message, benchmarks, planned, self._speedup, self.elapsed_s, eta_s, known
            )
        )

    def progress(self, stage: str) -> Callable[[str, int, int | None], None]:
        """Return a function that reports how far a long step is.

        Args:
            stage: The current stage.

        Returns:
            A function that takes the current action, the amount done, and the total, if known.
        """
        began: dict[str, float] = {}
        last = time.monotonic()

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal last
            since, last = began.setdefault(what, last), time.monotonic()
            is_over = total is not None and done >= total  # what follows may take long, too
            eta_s = (last - since) / done * (total - done) if total and done else None
            of = "" if total is None else f" of {total}"
            self._emit(
                TuneEvent(
                    stage, f"{done}{of} {what}", speedup=self._speedup, seconds=self.elapsed_s,
                    eta_s=None if is_over else eta_s, done=done, total=total,
                )
            )  # fmt: skip

        return show

    def counter(self, stage: str, what: str) -> Callable[[int, int | None], None]:
        """Return a function that reports how far a step of one action is; see `progress`."""
        show = self.progress(stage)
        return lambda done, total: show(what, done, total)

    def _emit(self, event: TuneEvent) -> None:
        if self._budget_s is not None:
            event = replace(event, budget_left_s=max(0.0, self.left_s))
        for callback in self._callbacks:
            callback(event)

    def seconds(self) -> Seconds:
        """Return how the time was spent so far."""
        total, clocks = self.elapsed_s, {worker.process.clock for worker in self.workers}
        return Seconds(
            total=total,
            building=sum(worker.totals.building_s for worker in self.workers),
            timing=sum(worker.totals.timing_s for worker in self.workers),
            own=max(0.0, total - sum(clock.total_s for clock in clocks)),
        )
