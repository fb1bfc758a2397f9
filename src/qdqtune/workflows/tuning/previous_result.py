"""What an earlier run left in the folder: a proven result is not given up for nothing."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.graph.files import load_model, save_model
from qdqtune.records.claim import Claim
from qdqtune.records.errors import EngineError, NewerSchemaError, QdqtuneError
from qdqtune.records.measurement import Comparison
from qdqtune.records.placement import Placement
from qdqtune.records.tuning import Summary
from qdqtune.records.untrusted_files import parse_json, read_text
from qdqtune.records.verification import Outcome
from qdqtune.workflows.accuracy_evaluator import AccuracyEvaluator
from qdqtune.workflows.claims import check_placement
from qdqtune.workflows.remeasured_error import SAME_DB
from qdqtune.workflows.tuning.final_model import Timed, why_not_shipped
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.handover import FINAL, PLACEMENT, SUMMARY, sha256_of_model

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
        found = timed.comparison
        summary = replace(
            self.summary,
            baseline_ms=timed.baseline_ms,
            final_ms=timed.final_ms,
            speedup=found.ratio,
            speedup_interval=(found.low, found.high),
            confidence=found.confidence,
            contention=found.contention,
            openings=found.openings,
        )
        return replace(self, summary=summary)

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
