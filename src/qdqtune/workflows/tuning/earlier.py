"""What an earlier run left in the folder: a proven result is not given up for nothing."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.records.errors import QdqtuneError
from qdqtune.records.placement import Placement
from qdqtune.records.tuning import Summary
from qdqtune.workflows.tuning.folder import FINAL, PLACEMENT, SUMMARY, RunFolder
from qdqtune.workflows.tuning.request import TuneRequest
from qdqtune.workflows.tuning.story import Story

_logger = logging.getLogger(__name__)

_CHUNK = 1 << 20


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

    def is_good_enough(self, request: TuneRequest) -> bool:
        """Whether it is what this request would accept as well."""
        was = self.summary
        if was.quant_type != request.quant_type or was.speedup < request.threshold:
            return False
        if request.evaluate is not None:
            metric = was.metric or {}
            return metric.get("final", 0.0) >= metric.get("float", float("inf")) - request.max_drop
        if request.min_sqnr_db is None:
            return True
        return was.output_sqnr_db is not None and was.output_sqnr_db >= request.min_sqnr_db

    def summary_after(self, story: Story, seconds: float) -> Summary:
        """Its summary, with what was spent since."""
        return replace(
            self.summary,
            stopped=story.stopped,
            runs=story.runs,
            total_benchmarks=story.earlier_benchmarks + story.benchmarks,
            total_seconds=story.earlier_s + seconds,
        )


def earlier_result(folder: RunFolder) -> EarlierResult | None:
    """The result of an earlier run, if there is one, whole and unchanged."""
    model = folder / FINAL
    try:
        body = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        summary = Summary.from_dict(body)
        placement = Placement.from_json((folder / PLACEMENT).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, QdqtuneError) as error:
        _logger.warning("%s is damaged and left out: %s", folder / SUMMARY, error)
        return None
    if summary.kept_float or not model.is_file() or sha256_of(model) != summary.final_sha256:
        return None
    return EarlierResult(model, summary, placement)


def sha256_of(file: Path) -> str:
    """A file's hash."""
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
