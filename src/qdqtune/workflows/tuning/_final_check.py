"""The last check of `quantize` and `tune`: a file is read back and timed against the original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._reopened_comparison import Allowance, compare_reopened, is_faster
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import check_result, load_model
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import EngineError
from qdqtune.records._measurement import Comparison, Verdict
from qdqtune.records._placement import Placement


@dataclass(frozen=True)
class Timed:
    """Two files side by side.

    Attributes:
        baseline_ms: Latency of the first.
        final_ms: Latency of the second.
        comparison: Second over first.
        log_ratios: What each process said that they were opened in.
    """

    baseline_ms: float
    final_ms: float
    comparison: Comparison
    log_ratios: tuple[float, ...] = ()

    @property
    def figures(self) -> dict[str, Any]:
        """What a `Summary` says of it."""
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
    """Make sure that a file is valid, and that what is in it is what was asked for.

    Raises:
        ModelError: If it is not valid.
        EngineError: If its Q/DQ are not those of the placement.
    """
    check_result(path, original)
    found = canonical(inserter.index, read(load_model(path)).placement)
    wanted = canonical(inserter.index, placement)
    if found.edges != wanted.edges:
        lost, added = len(wanted.edges - found.edges), len(found.edges - wanted.edges)
        raise EngineError(
            f"The file does not hold the placement that was measured: {lost} places are lost, "
            f"{added} added.",
            "Nothing was written. This is a bug in qdqtune: please report it with the model.",
        )


def time_final(
    new_worker: Callable[[int], Worker],
    baseline: Path,
    finals: Sequence[Path],
    feeds: Feeds,
    allowance: Allowance,
) -> list[Timed | str]:
    """Time files against the model as it was given.

    Args:
        new_worker: Starts the engine afresh, for the process of this number: nothing of the search
            is left in it.
        baseline: The model as given.
        finals: What may be handed over.
        feeds: What all are run on.
        allowance: What it may take; the fewest rounds are played in any case.

    Returns:
        For each, how it compares, or why it can't be timed.

    Raises:
        EngineError: If the engine doesn't run the model as it was given.
    """
    base, *found = compare_reopened(new_worker, [baseline, *finals], feeds, allowance)
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
    """Why a model isn't fast enough to be handed over; empty if it is."""
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
