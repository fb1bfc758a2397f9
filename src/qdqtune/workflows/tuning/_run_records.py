"""What a run records, and what it knows from earlier runs in its folder."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.graph._files import load_model, save_model
from qdqtune.records._claim import Claim
from qdqtune.records._errors import EngineError, NewerSchemaError, QdqtuneError
from qdqtune.records._measurement import Comparison
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import parse_json, read_text
from qdqtune.records._verification import Outcome
from qdqtune.search._config import Config
from qdqtune.search._space import Grouping
from qdqtune.search.patterns._state_file import read_state
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator
from qdqtune.workflows._claims import SAME_DB, check_placement
from qdqtune.workflows.tuning import _folder as names
from qdqtune.workflows.tuning._candidate_evaluator import CandidateEvaluator
from qdqtune.workflows.tuning._context import RunContext
from qdqtune.workflows.tuning._final_check import Timed, why_not_shipped
from qdqtune.workflows.tuning._folder import RunFolder
from qdqtune.workflows.tuning._identity import check_state
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._run_files import FINAL, PLACEMENT, SUMMARY, sha256_of_model
from qdqtune.workflows.tuning._setup import TuningTarget
from qdqtune.workflows.tuning._snapshots import Candidate, SchemeLogs, Snapshots, set_state_aside

_logger = logging.getLogger(__name__)

# What a summary says about its run, and not about the result.
_OF_A_RUN = (
    "engine",
    "build_with",
    "version",
    "command",
    "date",
    "stopped",
    "benchmarks",
    "memo_hits",
    "failed",
    "subgraph_benchmarks",
    "subgraph_failed",
    "seconds",
    "runs",
    "total_benchmarks",
    "total_seconds",
)


@dataclass(frozen=True)
class PreviousResult:
    """A quantized model that an earlier run proved to be faster, and that is still there.

    Attributes:
        model: The file.
        summary: What was said of it.
        placement: What is quantized in it.
        claim: The same summary, as what is to be checked.
    """

    model: Path
    summary: Summary
    placement: Placement
    claim: Claim

    def is_slower_than_claimed(self, measured: Comparison) -> bool:
        """Whether it can't be as fast as its summary says."""
        return measured.ratio < self.claim.speedup and not self.claim.agrees_with(measured)

    def timed_again(self, timed: Timed) -> PreviousResult:
        """The result with other figures of its speed."""
        return replace(self, summary=replace(self.summary, **timed.figures))

    def summary_after(self, run: Summary) -> Summary:
        """Its summary, with what the run did that found nothing better.

        Args:
            run: What that run would have said of itself.
        """
        done = {name: getattr(run, name) for name in _OF_A_RUN}
        found_by = self.summary.result_run or self.summary.runs
        return replace(self.summary, **done, result_run=found_by)


def previous_result(folder: RunFolder) -> PreviousResult | None:
    """The result of an earlier run, if there is one, whole and unchanged."""
    model = folder / FINAL
    try:
        body = parse_json(read_text(folder / SUMMARY), SUMMARY)
        summary = Summary.from_dict(body, str(folder / SUMMARY))
        claim = Claim.from_summary(body)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        _logger.warning("%s is damaged and left out: %s", folder / SUMMARY, error)
        return None
    try:
        placement = Placement.from_json(read_text(folder / PLACEMENT), str(folder / PLACEMENT))
    except NewerSchemaError:
        raise
    except (OSError, ValueError, QdqtuneError) as error:
        _logger.warning("%s is damaged and left out: %s", folder / PLACEMENT, error)
        return None
    if summary.kept_float or not model.is_file() or sha256_of_model(model) != summary.final_sha256:
        return None
    return PreviousResult(model, summary, placement, claim)


def why_not_kept(
    earlier: PreviousResult, accuracy: AccuracyEvaluator, room: Path, min_sqnr_db: float | None
) -> str:
    """Why a result that lay in the folder is not what its summary says; empty if it is.

    The folder may be a stranger's, and whoever changes a model can change its hash as well.

    Args:
        earlier: The result.
        accuracy: Compares outputs with the float model's.
        room: A folder for a copy of it.
        min_sqnr_db: How near to float it has to be; None if anything will do.

    Raises:
        OutputError: If there is no room.
    """
    placed, _ = check_placement(earlier.model, None)
    if placed.outcome is not Outcome.CONFIRMED:
        return placed.text
    try:
        copy = save_model(load_model(earlier.model), room / "earlier.onnx", force=True)
        found = accuracy.quality(copy).against_float
    except EngineError as error:
        return error.what
    measured, claimed = min(found.values(), default=None), earlier.summary.output_sqnr_db
    if measured is None:
        return ""
    least = max(each for each in (claimed, min_sqnr_db, -math.inf) if each is not None)
    if measured >= least - SAME_DB:
        return ""
    return f"its outputs are {measured:.1f} dB from float, not {least:.1f}"


def why_not_as_fast(earlier: PreviousResult, timed: Timed | None, threshold: float) -> str:
    """Why a result that was timed again is neither as fast as claimed nor fast enough.

    Args:
        earlier: The result.
        timed: How it compares with the model as given now; None if it was not timed.
        threshold: The speedup that it takes.
    """
    if timed is None or not earlier.is_slower_than_claimed(timed.comparison):
        return ""
    if not why_not_shipped(timed.comparison, threshold):
        return ""
    return f"it is {timed.comparison.ratio:.3f}x as fast as float, not {earlier.claim.speedup:.3f}x"


@dataclass(frozen=True)
class RunRecords:
    """The files that a run writes as it goes on.

    Attributes:
        journal: Every measurement.
        snapshots: The state and the pattern cache.
        logs: One text per scheme.
        earlier: What an earlier run left, if anything.
    """

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
    header = target.identity.header
    lines = _lines_of_state(ctx, target)
    journal = Journal(path, header, lambda: reporter.elapsed_s, str(request.model))
    with contextlib.closing(journal):
        if adopted := journal.adopt(lines):
            known = f"{adopted} measurements known"
            reporter.tell("resume", f"resuming from {request.state_file}: {known}")
        if journal.session > 1:
            known = f"{journal.earlier_benchmarks} measurements known"
            reporter.tell("resume", f"resuming an earlier run: {known}")
        state, config = request.state_file or folder / names.STATE, request.config
        threshold = max(config.performance_threshold, 1e-9)
        settings = Config(default_quant_type=config.quant_type, performance_threshold=threshold)
        snapshots = Snapshots(state, header, settings, target.cache)
        logs = SchemeLogs(folder / names.LOGS, target.info)
        yield RunRecords(journal, snapshots, logs, previous_result(folder))


def _lines_of_state(ctx: RunContext, target: TuningTarget) -> tuple[str, ...]:
    """What a state file that the user names carries, which may be that of another folder.

    Raises:
        UsageError: If it was measured under other conditions.
    """
    path = target.request.state_file
    if path is None or not path.exists():
        return ()
    if ctx.folder.begins_anew:
        set_state_aside(path)
        return ()
    state = read_state(path)
    check_state(path, state.header, target.identity.header)
    return state.measurements
