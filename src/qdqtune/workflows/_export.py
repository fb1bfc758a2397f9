"""Candidates of a run that is over: what was tried, and any of it as a model of its own."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from qdqtune.graph._atomic_files import sha256_of
from qdqtune.graph._external_data import external_files
from qdqtune.graph._files import EXTERNAL, check_targets, load_model, parse_model, save_model
from qdqtune.graph._fingerprint import model_digest, stored_chunks
from qdqtune.graph._op_classes import DEQUANTIZE
from qdqtune.graph._protobuf import contents
from qdqtune.graph._weights import WEIGHTS_FILE, indexed_checksums
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import ModelError, OutputError, QdqtuneError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._results import Candidate, ExportReport
from qdqtune.records._untrusted_files import real_path
from qdqtune.search.strategies._strategy import speedup_of
from qdqtune.workflows._arguments import check_arguments
from qdqtune.workflows.tuning._folder import BASELINE, CANDIDATES, JOURNAL
from qdqtune.workflows.tuning._journal_format import whole_lines

_logger = logging.getLogger(__name__)

_FLOAT = Placement().digest()
_MOST_NAMED = 3


@dataclass
class _Tried:
    """What a journal says about one placement."""

    key: str
    latency_ms: float | None = None
    gain: float | None = None
    is_confirmed: bool = False
    failure: str | None = None
    digest: str | None = None
    sha256: str | None = None

    def take(self, line: Mapping[str, Any], reference_gain: float | None) -> None:
        """Take a measurement in: the newest, but none that is less thorough."""
        if line["failure"] is not None:
            self.failure = line["failure"]
            return
        sha256 = line.get("sha256")  # without the weights: earlier versions kept no more
        self.sha256 = sha256 if isinstance(sha256, str) else self.sha256
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
    has_digests: bool = False

    def file_of(self, candidate: str) -> Path:
        return self.folder / CANDIDATES / f"{candidate}.onnx"


def list_candidates(run_dir: str | os.PathLike[str]) -> list[Candidate]:
    """What a run tried, in the order in which it was tried.

    Args:
        run_dir: The run's output folder.

    Raises:
        UsageError: If it is not one.
    """
    check_arguments(folder=run_dir)
    run = _read(Path(run_dir))
    return [_candidate(run, name) for name in run.tried]


def _candidate(run: _Run, name: str) -> Candidate:
    tried = run.tried[name]
    return Candidate(
        id=name,
        tensors=_quantized_tensors(run.file_of(name)),
        latency_ms=tried.latency_ms,
        speedup=speedup_of(tried.gain) if tried.gain is not None else None,
        failure=tried.failure,
    )


def export(
    folder: str | os.PathLike[str],
    candidate: str,
    output: str | os.PathLike[str],
    *,
    force: bool = False,
) -> ExportReport:
    """Write a candidate of a tuning run as a model that needs nothing of the run's folder.

    Args:
        folder: The run's output folder.
        candidate: The candidate's id, as `list_candidates` tells it.
        output: Where to write.
        force: Whether an existing file may be replaced.

    Raises:
        UsageError: If the folder is not a run's, or there is no such candidate.
        ModelError: If the candidate's file is missing, or is not what was measured.
        OutputError: If the output can't be written.
    """
    check_arguments(folder=folder, candidate=candidate, output=output, force=force)
    run = _read(Path(folder))
    if candidate not in run.tried:
        raise UsageError(
            f"{folder} has no candidate {candidate!r}.",
            f"`qdqtune export {folder} --list` shows all {len(run.tried)}.",
        )
    file = run.file_of(candidate)
    if not file.is_file():
        raise ModelError(
            f"The file of the candidate {candidate} is missing: {file}.",
            "It could not be written, or was deleted: run the same `qdqtune tune` again.",
        )
    if real_path(output).parent == real_path(file).parent:
        raise OutputError(
            f"{output} would lie among the candidates of the run.", "Choose another folder."
        )
    check_targets(output, None, file, force=force)
    model = load_model(file)
    known = run.tried[candidate]
    if known.digest is None and run.has_digests:
        raise ModelError(
            f"Nothing says what {file} was when it was measured: the line in {JOURNAL} that tells "
            "its digest is damaged or missing.",
            "Run the same `qdqtune tune` again: it writes the candidates anew.",
        )
    if read(model).placement.digest() != known.key or not _is_as_written(file, known):
        raise ModelError(
            f"{file} is not what was measured as {candidate}: the file, or its weights in "
            f"{WEIGHTS_FILE}, were changed since, or come from another run.",
            "Run the same `qdqtune tune` again: it writes the candidates anew. The others may be "
            f"sound: `qdqtune export {folder} --list`.",
        )
    # Candidates share a file of weights; a model of its own has them where the given one had.
    model.meta[EXTERNAL] = bool(external_files(run.folder / BASELINE))
    return ExportReport(save_model(model, output, force=force), _candidate(run, candidate))


def _is_as_written(file: Path, known: _Tried) -> bool:
    """Whether a candidate's file and weights are what the run had written."""
    if known.digest is not None:
        return model_digest(file) == known.digest
    return _is_as_older_versions_wrote(file, known)


def _is_as_older_versions_wrote(file: Path, known: _Tried) -> bool:
    """The same as far as a run says it that kept no digests; what can't be checked is named."""
    if known.sha256 is not None and sha256_of(file) != known.sha256:
        return False
    unchecked = [] if known.sha256 is not None else [file.name]
    checksums = indexed_checksums(file.with_name(WEIGHTS_FILE))
    for tensor in contents(parse_model(file)).external:
        place, found = _checksum(tensor, file)
        if place not in checksums:
            unchecked.append(f"the weight {tensor.name!r}")
        elif found not in checksums[place]:
            return False
    if unchecked:
        _logger.warning(
            "%s was written by a version of qdqtune that kept no digests: %s can't be checked. "
            "Run the same `qdqtune tune` again to write it anew.",
            file, _some(unchecked),
        )  # fmt: skip
    return True


def _some(names: list[str]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _checksum(tensor: onnx.TensorProto, file: Path) -> tuple[tuple[int, int], int]:
    """Where a tensor lies, and the checksum of what lies there."""
    found = length = 0
    for chunk in stored_chunks(tensor, file):
        found, length = zlib.crc32(chunk, found), length + len(chunk)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    return (int(entries.get("offset", "0")), length), found


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
        if line["kind"] == "candidate":
            run.tried[line["id"]] = by_key.setdefault(line["key"], _Tried(line["key"]))
        elif line["kind"] == "file":
            by_key.setdefault(line["key"], _Tried(line["key"])).digest = line["digest"]
            run.has_digests = True
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
