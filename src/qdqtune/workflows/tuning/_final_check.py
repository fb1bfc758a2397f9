"""The last check of `quantize` and `tune`: a file is read back and timed against the original.

An earlier run's result must pass it as well.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._comparison import Allowance, compare_reopened, is_faster
from qdqtune.engines._pool import WorkerPool
from qdqtune.graph._files import check_result, load_model, save_model
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import EngineError, NewerSchemaError, QdqtuneError
from qdqtune.records._measurement import Comparison, Verdict
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import parse_json, read_text
from qdqtune.records._verification import Claim, Outcome
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator
from qdqtune.workflows._claims import SAME_DB, check_placement
from qdqtune.workflows.tuning._folder import RunFolder
from qdqtune.workflows.tuning._run_files import FINAL, PLACEMENT, SUMMARY, sha256_of_model

_logger = logging.getLogger(__name__)

# Fields of a summary that describe its run, not its result.
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
class Timed:
    """Two files timed side by side.

    Attributes:
        baseline_ms: Latency of the first.
        final_ms: Latency of the second.
        comparison: Speedup of the second over the first.
        log_ratios: The log ratio from each process in which they were opened.
    """

    baseline_ms: float
    final_ms: float
    comparison: Comparison
    log_ratios: tuple[float, ...] = ()

    @property
    def figures(self) -> dict[str, Any]:
        """The corresponding fields of a `Summary`."""
        found = self.comparison
        return {
            "baseline_ms": self.baseline_ms,
            "final_ms": self.final_ms,
            "speedup": found.ratio,
            "speedup_interval": (found.low, found.high),
            "confidence": found.confidence,
            "contention": found.contention,
            "openings": found.openings,
        }

    def is_faster_than(self, other: Timed) -> bool:
        """Whether its model is significantly faster than another one of the same run."""
        is_clear = self.comparison.low > other.comparison.high
        return is_clear or is_faster(self.log_ratios, other.log_ratios)


def check_written(path: Path, inserter: Inserter, placement: Placement, original: Path) -> None:
    """Make sure that a file is valid, and has the requested placement.

    Raises:
        ModelError: If it is not valid.
        EngineError: If its Q/DQ are not those of the placement.
    """
    check_result(path, original)
    found = canonical(inserter.index, read(load_model(path)).placement)
    wanted = canonical(inserter.index, placement)
    if found != wanted:
        lost = len(wanted.edges - found.edges) + len(wanted.dynamic - found.dynamic)
        added = len(found.edges - wanted.edges) + len(found.dynamic - wanted.dynamic)
        raise EngineError(
            f"The file does not hold the placement that was measured: {lost} places are lost, "
            f"{added} added.",
            "Nothing was written. This is a bug in qdqtune: please report it with the model.",
        )


def time_final(
    pool: WorkerPool,
    baseline: Path,
    finals: Sequence[Path],
    feeds: Feeds,
    allowance: Allowance,
    told: Callable[[int], None] = lambda _: None,
) -> list[Timed | str]:
    """Time files against the original model.

    Args:
        pool: Workers, which start fresh processes, so that no state of the search is left.
        baseline: The original model.
        finals: The possible results.
        feeds: The inputs for all of them.
        allowance: The time limits; the minimum number of rounds is always run.
        told: Called with the number of processes that have ended, before more are started.

    Returns:
        For each, its comparison, or why it can't be timed.

    Raises:
        EngineError: If the engine doesn't run the original model.
    """
    base, *found = compare_reopened(pool, [baseline, *finals], feeds, allowance, told)
    if base.error is not None:
        raise EngineError(
            f"The engine does not run {baseline}: {base.error}",
            "It ran before: is the machine out of memory?",
        )
    return [
        Timed(base.latency_ms, each.latency_ms, each.comparison, each.log_ratios)
        if each.comparison is not None
        else f"the engine does not run it: {each.error}"
        for each in found
    ]


def why_not_shipped(comparison: Comparison, threshold: float) -> str:
    """Return why a model isn't fast enough to be the result; empty if it is."""
    if comparison.verdict is not Verdict.FASTER:
        is_slower = comparison.verdict is Verdict.SLOWER
        return (
            f"the best that was found is {'slower' if is_slower else 'not significantly faster'}: "
            f"{comparison.ratio:.3f}x, "
            f"between {comparison.low:.3f}x and {comparison.high:.3f}x"
        )
    if comparison.ratio < threshold:
        return f"the best that was found gains {comparison.ratio:.3f}x, less than {threshold:g}x"
    return ""


@dataclass(frozen=True)
class PreviousResult:
    """A quantized model that an earlier run proved to be faster, and that still exists.

    Attributes:
        file: The model.
        summary: Its summary.
        placement: Its placement.
        claim: The summary as a claim to check.
    """

    file: Path
    summary: Summary
    placement: Placement
    claim: Claim

    def is_slower_than_claimed(self, measured: Comparison) -> bool:
        """Whether it can't be as fast as its summary claims."""
        return measured.ratio < self.claim.speedup and not self.claim.agrees_with(measured)

    def timed_again(self, timed: Timed) -> PreviousResult:
        """Return the result with new speed figures."""
        return replace(self, summary=replace(self.summary, **timed.figures))

    def summary_after(self, run: Summary) -> Summary:
        """Return its summary, updated after a run that found nothing better.

        Args:
            run: The summary that the run itself would have had.
        """
        done = {name: getattr(run, name) for name in _OF_A_RUN}
        found_by = self.summary.result_run or self.summary.runs
        return replace(self.summary, **done, result_run=found_by)


def previous_result(folder: RunFolder) -> PreviousResult | None:
    """Return the result of an earlier run, if there is one, complete and unchanged."""
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
    """Return why an earlier result does not match its summary; empty if it does.

    The folder may be untrusted, and whoever modifies a model can also modify its hash.

    Args:
        earlier: The result.
        accuracy: Compares outputs with the float model's.
        room: A folder for a copy of it.
        min_sqnr_db: Its minimum SQNR; None for no limit.

    Raises:
        OutputError: If there is no disk space.
    """
    placed, _ = check_placement(earlier.file, None)
    if placed.outcome is not Outcome.CONFIRMED:
        return placed.text
    try:
        copy = save_model(load_model(earlier.file), room / "earlier.onnx", force=True)
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
