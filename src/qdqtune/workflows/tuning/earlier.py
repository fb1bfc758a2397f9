"""What an earlier run left in the folder: a proven result is not given up for nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.records.errors import NewerSchemaError, QdqtuneError
from qdqtune.records.placement import Placement
from qdqtune.records.reading import parse_json, read_text
from qdqtune.records.tuning import Summary
from qdqtune.workflows.tuning.folder import RunFolder
from qdqtune.workflows.tuning.handover import FINAL, PLACEMENT, SUMMARY, sha256_of_model

_logger = logging.getLogger(__name__)

# What a summary says about its run, and not about the result.
_OF_A_RUN = (
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
class EarlierResult:
    """A quantized model that an earlier run proved to be faster, and that is still there.

    Attributes:
        model: The file.
        summary: What was said of it.
        placement: What is quantized in it.
    """

    model: Path
    summary: Summary
    placement: Placement

    def summary_after(self, run: Summary) -> Summary:
        """Its summary, with what the run did that found nothing better.

        Args:
            run: What that run would have said of itself.
        """
        done = {name: getattr(run, name) for name in _OF_A_RUN}
        found_by = self.summary.result_run or self.summary.runs
        return replace(self.summary, **done, result_run=found_by)


def earlier_result(folder: RunFolder) -> EarlierResult | None:
    """The result of an earlier run, if there is one, whole and unchanged."""
    model = folder / FINAL
    try:
        body = parse_json(read_text(folder / SUMMARY), SUMMARY)
        summary = Summary.from_dict(body, str(folder / SUMMARY))
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
    return EarlierResult(model, summary, placement)
