"""What every stage of a run works with: the request, the engines and the progress reporter."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qdqtune.calibration._user_code import UserFunction
from qdqtune.config import Callback, TuneConfig
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.engines._worker import Worker
from qdqtune.qdq._dialect import Dialect
from qdqtune.records._tuning import Seconds, TuneEvent
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._folder import RunFolder
from qdqtune.workflows.tuning._time_budget import Preset, TimeBudget

_logger = logging.getLogger(__name__)

SHOWN_EVERY_S = 2.0
"""How often a long step is reported."""


@dataclass(frozen=True)
class TuneRequest:
    """A call of `qdqtune.tune`.

    Attributes:
        model: The model as given.
        config: What is asked for.
        engine: The engine that runs it, by name.
        options: How it opens models.
        dialect: How Q/DQ is written for it.
        preset: How thorough to be.
        evaluate: The user's metric, if there is one.
        converted: The model in another float type, which is tuned instead; None if it is as given.
    """

    model: Path
    config: TuneConfig
    engine: str
    options: SessionOptions
    dialect: Dialect
    preset: Preset
    evaluate: UserFunction | None = None
    converted: Path | None = None

    @property
    def state_file(self) -> Path | None:
        """The state file that the user names."""
        return None if self.config.state_file is None else Path(self.config.state_file)

    @property
    def file(self) -> Path:
        """The model that is tuned, and handed back if nothing is faster."""
        return self.converted or self.model


class ProgressReporter:
    """Keeps time and reports every step.

    Args:
        callbacks: Called with every event.
        budget_s: Seconds that the run may take; None has no end.

    Attributes:
        workers: Processes whose time is not our own.
    """

    def __init__(self, callbacks: Sequence[Callback], budget_s: float | None) -> None:
        self.workers: list[Worker] = []
        self._callbacks = callbacks
        self._budget_s = budget_s
        self._start = time.monotonic()
        self._search_start: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """What is left of the budget: below 0 if it is over, infinite without one."""
        return math.inf if self._budget_s is None else self._budget_s - self.elapsed_s

    def search_begins(self) -> None:
        """From here on, benchmarks tell how long the rest will take."""
        self._search_start = time.monotonic()

    def tell(
        self,
        stage: str,
        message: str,
        *,
        benchmarks: int = 0,
        known: int = 0,
        planned: int | None = None,
        speedup: float = 1.0,
        rest_s: float = 0.0,
        eta_s: float | None = None,
    ) -> None:
        """Report a step.

        Args:
            stage: What the run is at.
            message: What happened.
            benchmarks: Candidates timed so far.
            known: Those that earlier runs had timed.
            planned: Candidates that there will be.
            speedup: Of the best so far.
            rest_s: Seconds that what follows the search will take.
            eta_s: Seconds left of a step that is no part of the search.
        """
        if self._search_start is not None and planned and benchmarks:
            each_s = (time.monotonic() - self._search_start) / benchmarks
            eta_s = max(0, planned - known - benchmarks) * each_s + rest_s
            eta_s = min(eta_s, max(0.0, self.left_s))
        event = TuneEvent(
            stage, message, benchmarks, planned, speedup, self.elapsed_s, eta_s, known
        )
        _logger.info("%s: %s", stage, message)
        for callback in self._callbacks:
            callback(event)

    def progress(self, stage: str) -> Callable[[str, int, int | None], None]:
        """A function that reports how far a long step is, at most every few seconds.

        Args:
            stage: What the run is at.

        Returns:
            A function that takes what is being done, how much of it is done, and how much there
            is, if that is known.
        """
        began: dict[str, float] = {}
        shown = time.monotonic()

        def show(what: str, done: int, total: int | None) -> None:
            nonlocal shown
            now = time.monotonic()
            since = began.setdefault(what, now)
            if now - shown < SHOWN_EVERY_S:
                return
            shown = now
            eta_s = (now - since) / done * (total - done) if total and done else None
            of = f"{done} of {total}" if total else f"{done}"
            self.tell(stage, f"{what}: {of}", eta_s=eta_s)

        return show

    def seconds(self) -> Seconds:
        """Where the time went so far."""
        total = self.elapsed_s
        return Seconds(
            total=total,
            building=sum(worker.totals.building_s for worker in self.workers),
            timing=sum(worker.totals.timing_s for worker in self.workers),
            own=max(0.0, total - sum(worker.totals.waited_s for worker in self.workers)),
        )


@dataclass(frozen=True)
class Engines:
    """The processes that run models.

    Attributes:
        engine: The engine that the model is tuned for.
        runner: The reference engine.
        log: Where the engine's output goes.
        folder: Where processes keep their files.
    """

    engine: Worker
    runner: Worker
    log: Path
    folder: Path

    def restarted(self, opening: int) -> Worker:
        """The engine in a new process, as it is set up by now.

        Args:
            opening: The number of the process among those of one comparison.
        """
        return Worker(
            self.engine.engine, self.engine.options, timeout_s=self.engine.timeout_s,
            log_path=self.log, scratch=self.folder, opening=opening,
        )  # fmt: skip


@contextlib.contextmanager
def open_engines(
    request: TuneRequest, folder: RunFolder, reporter: ProgressReporter
) -> Iterator[Engines]:
    """The engines of a run, which end with it; the reporter knows how long they work.

    Args:
        request: What was asked for.
        folder: The run's folder.
        reporter: Keeps time.
    """
    logs, scratch = folder / names.LOGS, folder.scratch
    log = logs / names.ENGINE_LOG
    with (
        reference_worker(log_path=logs / "runs.log", scratch=scratch) as runner,
        Worker(request.engine, request.options, log_path=log, scratch=scratch) as engine,
    ):
        reporter.workers += [runner, engine]
        yield Engines(engine, runner, log, scratch)


@dataclass(frozen=True)
class RunContext:
    """What every stage of a run works with; results are in the values that stages return.

    Attributes:
        folder: Where everything goes.
        engines: What runs models.
        reporter: Reports every step.
        budget: What there is time for.
    """

    folder: RunFolder
    engines: Engines
    reporter: ProgressReporter
    budget: TimeBudget
