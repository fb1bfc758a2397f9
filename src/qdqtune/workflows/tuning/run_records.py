"""What a run writes down, and what it knows from earlier runs in its folder."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qdqtune.autotune.search.grouping import Grouping
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.candidate_evaluator import CandidateEvaluator
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.header import as_said_before
from qdqtune.workflows.tuning.journal import Journal
from qdqtune.workflows.tuning.named_state import measurements_in, set_state_aside
from qdqtune.workflows.tuning.previous_result import PreviousResult, previous_result
from qdqtune.workflows.tuning.scheme_logs import SchemeLogs
from qdqtune.workflows.tuning.setup import TuningTarget
from qdqtune.workflows.tuning.snapshot import Candidate, Snapshots


@dataclass(frozen=True)
class RunRecords:
    """The files that a run writes as it goes on.

    Attributes:
        header: What measurements depend on.
        journal: Every measurement.
        snapshots: The state and the pattern cache.
        logs: One text per scheme.
        earlier: What an earlier run left, if anything.
    """

    header: Mapping[str, Any]
    journal: Journal
    snapshots: Snapshots
    logs: SchemeLogs
    earlier: PreviousResult | None

    def take_snapshot(
        self,
        evaluator: CandidateEvaluator,
        grouping: Grouping,
        baseline_ms: float,
        best: Candidate,
    ) -> None:
        """Write the state and the logs of schemes, as far as the search has come.

        Args:
            evaluator: Knows what was tried.
            grouping: The model's patterns.
            baseline_ms: Latency of the float model.
            best: The best candidate.
        """
        tried = self.snapshots.write(
            evaluator.planner, grouping.views, evaluator.candidates(), best, baseline_ms,
            self.journal.kept_lines,
        )  # fmt: skip
        self.logs.write_schemes(grouping.views, tried)


@contextlib.contextmanager
def open_records(ctx: RunContext, target: TuningTarget) -> Iterator[RunRecords]:
    """Resume what lies in the folder, or begin.

    Raises:
        UsageError: If what lies there, or in a state file, was measured under other conditions.
        OutputError: If something can't be read or written.
    """
    request, folder, reporter = target.request, ctx.folder, ctx.reporter
    path = folder / names.JOURNAL
    header = as_said_before(path, target.header())
    lines = _lines_of_state(ctx, target, header)
    journal = Journal(path, header, lambda: reporter.elapsed_s, str(request.model))
    with contextlib.closing(journal):
        if adopted := journal.adopt(lines):
            known = f"{adopted} measurements known"
            reporter.tell("resume", f"going on from {request.state_file}: {known}")
        if journal.session > 1:
            known = f"{journal.earlier_benchmarks} measurements known"
            reporter.tell("resume", f"going on with an earlier run: {known}")
        state, config = request.state_file or folder / names.STATE, request.config
        snapshots = Snapshots(
            state, header, config.quant_type, config.performance_threshold, target.cache
        )
        logs = SchemeLogs(folder / names.LOGS, target.info)
        yield RunRecords(header, journal, snapshots, logs, previous_result(folder))


def _lines_of_state(
    ctx: RunContext, target: TuningTarget, header: Mapping[str, Any]
) -> tuple[str, ...]:
    """What a state file that the user names carries, which may be that of another folder.

    Raises:
        UsageError: If it was measured under other conditions.
    """
    state = target.request.state_file
    if state is None:
        return ()
    if ctx.folder.begins_anew:
        set_state_aside(state)
        return ()
    return measurements_in(state, header)
