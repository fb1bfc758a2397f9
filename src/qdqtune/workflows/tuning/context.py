"""What every stage of a run works with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from qdqtune.engines.isolated import Worker
from qdqtune.engines.reference_engine import reference_worker
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.progress_reporter import ProgressReporter
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.time_budget import TimeBudget


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
    """What every stage of a run works with; what is found out is in the values of the stages.

    Attributes:
        folder: Where everything goes.
        engines: What runs models.
        reporter: Hears of every step.
        pace: What there is time for.
    """

    folder: RunFolder
    engines: Engines
    reporter: ProgressReporter
    pace: TimeBudget
