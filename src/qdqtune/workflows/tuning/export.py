"""Candidates of a run that is over: what was tried, and any of it as a model of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtune.graph.external import external_files
from qdqtune.graph.files import EXTERNAL, check_targets, load_model, save_model
from qdqtune.graph.op_classes import DEQUANTIZE
from qdqtune.graph.parsing import parse_model
from qdqtune.qdq.read import read
from qdqtune.records.candidates import Candidate
from qdqtune.records.errors import ModelError, OutputError, QdqtuneError, UsageError
from qdqtune.records.placement import Placement
from qdqtune.workflows.tuning.earlier import sha256_of
from qdqtune.workflows.tuning.folder import BASELINE, CANDIDATES, JOURNAL
from qdqtune.workflows.tuning.lines import whole_lines

_CANDIDATE_ID = re.compile(r"\w+")
_FLOAT = Placement().digest()


@dataclass
class _Tried:
    """What a journal says about one placement."""

    key: str
    latency_ms: float | None = None
    gain: float | None = None
    is_confirmed: bool = False
    failure: str | None = None
    sha256: str | None = None

    def take(self, line: Mapping[str, Any], reference_gain: float | None) -> None:
        """Take a measurement in: the newest, but none that is less thorough."""
        if line["failure"] is not None:
            self.failure = line["failure"]
            return
        self.sha256 = line.get("sha256", self.sha256)
        is_confirmed = line["effort"].startswith("confirm")
        if is_confirmed < self.is_confirmed:
            return
        self.failure = None
        self.is_confirmed = is_confirmed
        self.latency_ms = line["latency_ms"]
        if reference_gain is not None:
            self.gain = reference_gain + line["gain"]


@dataclass
class _Run:
    """What a journal says about all of them, by id."""

    folder: Path
    tried: dict[str, _Tried] = field(default_factory=dict)

    def file_of(self, candidate: str) -> Path:
        return self.folder / CANDIDATES / f"{candidate}.onnx"


def list_candidates(run_dir: str | Path) -> list[Candidate]:
    """What a run tried, in the order in which it was tried.

    Args:
        run_dir: The run's output folder.

    Raises:
        UsageError: If it is not one.
    """
    run = _read(Path(run_dir))
    return [
        Candidate(
            id=name,
            tensors=_quantized_tensors(run.file_of(name)),
            latency_ms=tried.latency_ms,
            speedup=math.exp(tried.gain) if tried.gain is not None else None,
            failure=tried.failure,
        )
        for name, tried in run.tried.items()
    ]


def export_candidate(
    run_dir: str | Path, candidate: str, output: str | Path, *, force: bool = False
) -> Path:
    """Write a candidate as a model that needs nothing of the run's folder.

    Args:
        run_dir: The run's output folder.
        candidate: The candidate's id.
        output: Where to write.
        force: Whether an existing file may be replaced.

    Returns:
        The path written.

    Raises:
        UsageError: If the folder is not a run's, or there is no such candidate.
        ModelError: If the candidate's file is missing, or is not what was measured.
        OutputError: If the output can't be written.
    """
    run = _read(Path(run_dir))
    if candidate not in run.tried:
        raise UsageError(
            f"{run_dir} has no candidate {candidate!r}.",
            f"`qdqtune export {run_dir} --list` shows all {len(run.tried)}.",
        )
    file = run.file_of(candidate)
    if not file.is_file():
        raise ModelError(
            f"The file of the candidate {candidate} is missing: {file}.",
            "It could not be written, or was deleted: run the same `qdqtune tune` again.",
        )
    if Path(output).resolve().parent == file.resolve().parent:
        raise OutputError(
            f"{output} would lie among the candidates of the run.", "Choose another folder."
        )
    check_targets(output, None, file, force=force)
    model = load_model(file)
    known = run.tried[candidate]
    is_same = known.sha256 is None or sha256_of(file) == known.sha256
    if not is_same or read(model).placement.digest() != known.key:
        raise ModelError(
            f"{file} is not what was measured as {candidate}.",
            f"It was changed since, or comes from another run. The others may be sound: "
            f"`qdqtune export {run_dir} --list`.",
        )
    # Candidates share a file of weights; a model of its own has them where the given one had.
    model.meta[EXTERNAL] = bool(external_files(run.folder / BASELINE))
    return save_model(model, output, force=force)


def _read(folder: Path) -> _Run:
    run = _Run(folder)
    journal = folder / JOURNAL
    if not journal.is_file():
        raise UsageError(
            f"{folder} is not the folder of a tuning run: it has no {JOURNAL}.",
            "Name the --output_dir that `qdqtune tune` wrote to.",
        )
    by_key: dict[str, _Tried] = {}
    for line in whole_lines(journal):
        if line["kind"] == "candidate" and _CANDIDATE_ID.fullmatch(line["id"]):
            run.tried[line["id"]] = by_key.setdefault(line["key"], _Tried(line["key"]))
        elif line["kind"] == "measurement":
            tried = by_key.setdefault(line["candidate"], _Tried(line["candidate"]))
            tried.take(line, _gain_of(by_key, line["reference"]))
            if line["reference"] == _FLOAT:
                _take_float(by_key, line)
    return run


def _gain_of(by_key: Mapping[str, _Tried], key: str) -> float | None:
    if key == _FLOAT:
        return 0.0
    return by_key[key].gain if key in by_key else None


def _take_float(by_key: dict[str, _Tried], line: Mapping[str, Any]) -> None:
    """The float model is what others are compared with, and seldom compared itself."""
    reference = by_key.setdefault(_FLOAT, _Tried(_FLOAT))
    reference.gain = 0.0
    if line["reference_ms"] is not None:
        reference.latency_ms = line["reference_ms"]


def _quantized_tensors(file: Path) -> int | None:
    try:
        nodes = parse_model(file).graph.node
    except QdqtuneError:  # one bad file must not hide the others
        return None
    # A tensor that is quantized in two ways has two of them, both labelled with its name.
    return len({node.doc_string or node.output[0] for node in nodes if node.op_type == DEQUANTIZE})
