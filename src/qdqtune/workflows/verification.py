"""Measuring a model anew: is it what a tuning run said?"""

from __future__ import annotations

import filecmp
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qdqtune.engines import registry
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.read import strip
from qdqtune.qdq.units import canonical
from qdqtune.records.comparison import BenchRecord
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.measurement import EngineInfo
from qdqtune.records.placement import Edge, Placement
from qdqtune.records.reading import parse_json, read_bytes, read_text
from qdqtune.records.verification import Claim, Edges, VerifyReport
from qdqtune.workflows.comparison import bench
from qdqtune.workflows.tuning.folder import BASELINE, JOURNAL, PLACEMENT, SUMMARY
from qdqtune.workflows.tuning.lines import whole_lines

_logger = logging.getLogger(__name__)

_NOTHING_SAID = InputRequest()
# A speedup that differs from the claim is measured so often again, each time in a fresh process:
# what other tenants of a machine do to its caches lasts longer than one measurement.
_MOST_REPEATS = 2


def verify(
    model: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    engine: str | None = None,
    engine_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    runs: int | None = None,
    inputs: InputRequest = _NOTHING_SAID,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Time a model anew, and check it against what lies beside it.

    Args:
        model: The model in question.
        against: The float model; None is the `baseline.onnx` beside it.
        engine: What runs both; None is what the summary beside the model names, else the one
            usable here.
        engine_options: The engine's own options; None are those of the summary.
        threads: Threads per run; None is as in the summary, else the engine's default.
        runs: Timed runs per model; None takes as many as fit into some seconds.
        inputs: Shapes, ranges and seed of the random inputs; if no sizes are given, those of the
            run.
        progress: Called with the rounds done and planned.

    Raises:
        QdqtuneError: Whatever the user can act on. A model that is not what it was said to be is
            no error but a report.
    """
    file = Path(model)
    edges = None
    claim, is_spoken_of = _claim_about(file)
    baseline = _baseline_of(file, against)
    if is_spoken_of and not (claim is not None and claim.kept_float):
        edges = _compare_edges(file)
    if claim is not None and engine in (None, claim.engine.name):
        engine = claim.engine.name
        threads = claim.engine.threads if threads is None else threads
        engine_options = engine_options or claim.engine.options
    if claim is not None and not (inputs.shapes or inputs.dims):
        inputs = replace(inputs, shapes=_shapes_of_run(file.parent))
    is_as_given = None
    if claim is not None and claim.kept_float:
        is_as_given = filecmp.cmp(file, baseline, shallow=False)

    def measure() -> BenchRecord:
        return bench(
            [baseline, file],
            engine=engine or registry.AUTO,
            engine_options=engine_options,
            threads=threads,
            runs=runs,
            inputs=inputs,
            progress=progress,
        )

    report = VerifyReport(measure(), claim, edges, is_as_given)
    for _ in range(_MOST_REPEATS):
        if not report.differs_in_speed_only:
            break
        _logger.info("the speedup differs from the claim: it is measured once more")
        report = replace(report, bench=_or_later(report.bench, measure()))
    return report


def _or_later(first: BenchRecord, later: BenchRecord) -> BenchRecord:
    """A record that also says what a later one, in a process of its own, says of the speedup."""
    baseline, model = first.contestants
    found, again = model.against_first, later.contestants[1].against_first
    if found is None or again is None:
        return later
    both = replace(model, against_first=found.or_later(again))
    return replace(first, contestants=(baseline, both))


def _baseline_of(file: Path, against: str | os.PathLike[str] | None) -> Path:
    if against is not None:
        return Path(against)
    beside = file.with_name(BASELINE)
    if not beside.is_file():
        raise UsageError(
            f"There is nothing to compare {file} with: no {BASELINE} lies beside it.",
            "Name the float model: --against FLOAT.",
        )
    return beside


def _claim_about(file: Path) -> tuple[Claim | None, bool]:
    """What a summary beside a file says about it, and whether what lies there may be about it."""
    path = file.with_name(SUMMARY)
    if not path.is_file():
        return None, True
    try:
        summary = parse_json(read_text(path), str(path))
        if summary["kind"] != "summary":
            return None, True
        if file.name not in summary["files"].values() or file.name == BASELINE:
            return None, False
        return _claim(summary), True
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        _logger.warning("%s can't be read as the summary of a run: it is left out", path)
        return None, True


def _claim(summary: Mapping[str, Any]) -> Claim:
    low, high = summary["speedup_interval"]
    engine = summary["engine"]
    if not (isinstance(engine["name"], str) and isinstance(engine["options"], dict)):
        raise TypeError("there is no such engine")
    return Claim(
        speedup=float(summary["speedup"]),
        low=float(low),
        high=math.inf if high is None else float(high),
        kept_float=bool(summary["kept_float"]),
        engine=EngineInfo.from_dict(summary["engine"]),
    )


def _shapes_of_run(folder: Path) -> dict[str, tuple[int | None, ...]]:
    """What the inputs of a run's models were like; empty if nothing is known of it."""
    journal = folder / JOURNAL
    lines = whole_lines(journal) if journal.is_file() else ()
    headers = [line.get("header") for line in lines if line["kind"] == "run"]
    found = headers[0].get("shapes", {}) if headers and isinstance(headers[0], dict) else {}
    return {name: tuple(shape) for name, shape in found.items()}


def _compare_edges(file: Path) -> Edges | None:
    path = file.with_name(PLACEMENT)
    if not path.is_file():
        return None
    placement = Placement.from_json(read_bytes(path).decode(errors="replace"), str(path))
    model = load_model(file)
    found = strip(model).placement.edges
    index = GraphIndex(model)
    unknown = sorted(tensor for tensor in placement.tensors if tensor not in index.value)
    known = Placement(
        frozenset(edge for edge in placement.edges if edge.tensor in index.value),
        placement.outputs.difference(unknown),
    )
    expected = canonical(index, known).edges
    missing = (*unknown, *_in_words(expected - found))
    return Edges(len(expected) + len(unknown), missing, _in_words(found - expected))


def _in_words(edges: Iterable[Edge]) -> tuple[str, ...]:
    return tuple(
        f"{edge.tensor} into {edge.node or 'the output'}:{edge.position}" for edge in sorted(edges)
    )
