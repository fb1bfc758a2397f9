"""What a search as the peer does it would take: whole-model candidates, pattern after pattern.

Its quick preset times 30 schemes of every pattern, each built as a whole model and run 10 times to
warm up and 50 times for the clock. Writing candidates is not counted.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker
from qdqtune.workflows._insert import insert
from qdqtune.workflows._source_model import open_source

SCHEMES_PER_PATTERN = 30
RUNS_PER_CANDIDATE = 10 + 50


def peer_s(patterns: int, candidate_s: float) -> float:
    """Seconds of building and timing in the whole search."""
    return patterns * SCHEMES_PER_PATTERN * candidate_s


def candidate_s(engine: str, options: SessionOptions, files: Sequence[Path], feeds: Feeds) -> float:
    """Seconds that one candidate takes on an engine: to build, and to run; the mean over files.

    Raises:
        ValueError: If the engine can't run one of them.
    """
    with Worker(engine, options) as worker:
        found = [worker.measure(path, feeds) for path in files]
    for measured in found:
        if not measured.ok:
            raise ValueError(measured.error)
    return statistics.fmean(
        each.build_s + RUNS_PER_CANDIDATE * each.latency_ms / 1000.0 for each in found
    )


def write_all_quantized(
    path: Path, target: Path, engine: str, options: Mapping[str, str] | None = None
) -> Path:
    """Write a model with every op quantized that the engine has a kernel for."""
    dialect = native_dialect(engine, options=options)
    present = {node.op_type for node in open_source(path).model.graph}
    ops = sorted(present & dialect.rules.keys())
    insert(path, target, ops=ops, engine=engine, dialect=dialect.name, force=True)
    return target
