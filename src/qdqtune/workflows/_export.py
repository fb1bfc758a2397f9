"""`export`: candidates of a finished run as models, and lists of float nodes for other tools."""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from qdqtune._command_configs import ExportConfig
from qdqtune.graph._atomic_files import sha256_of
from qdqtune.graph._external_data import external_files
from qdqtune.graph._files import EXTERNAL, check_targets, load_model, parse_model, save_model
from qdqtune.graph._fingerprint import model_digest, stored_chunks
from qdqtune.graph._op_classes import COPY_OPS, DEQUANTIZE, WEIGHTED_OPS, is_op
from qdqtune.graph._protobuf import contents
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._weights import WEIGHTS_FILE, indexed_checksums
from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.qdq._read_back import read, strip
from qdqtune.records._errors import ModelError, OutputError, QdqtuneError, UsageError
from qdqtune.records._front import Front, FrontPoint
from qdqtune.records._placement import Placement
from qdqtune.records._printable import listed
from qdqtune.records._report import ReportDetails
from qdqtune.records._results import Candidate, ExportReport
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import parse_json, read_text, real_path
from qdqtune.search.strategies._strategy import speedup_of
from qdqtune.workflows._arguments import AnyModel, as_file, checked_path
from qdqtune.workflows._report import read_details, read_summary
from qdqtune.workflows.tuning._folder import (
    BASELINE,
    CANDIDATES,
    DETAILS,
    FINAL,
    JOURNAL,
    PARETO,
)
from qdqtune.workflows.tuning._journal_format import whole_lines

_logger = logging.getLogger(__name__)

_FLOAT = Placement().digest()
# Ops that one of the tools would quantize, besides weighted and passthrough ops.
_QUANTIZED_BY_SOME = frozenset(
    {
        "Add", "ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "CumSum",
        "DepthToSpace", "Div", "Elu", "Gelu", "GlobalAveragePool", "GlobalMaxPool", "GRU",
        "GroupNormalization", "HardSigmoid", "HardSwish", "InstanceNormalization",
        "LayerNormalization", "LeakyRelu", "LSTM", "MaxPool", "Mul", "Pad", "Pow", "PRelu",
        "ReduceMax", "ReduceMean", "ReduceSum", "Relu", "Resize", "Sigmoid", "Softmax", "Sub",
        "Tanh", "TopK", "Where",
    }
)  # fmt: skip
_QUANTIZABLE = tuple(sorted(WEIGHTED_OPS | COPY_OPS | _QUANTIZED_BY_SOME))
# Every tool fuses these into the op before them.
_ACTIVATIONS = ("Clip", "Relu")
_ABSORBING = ("Add", *_ACTIVATIONS, *WEIGHTED_OPS)
# Ops whose second input counts even if it is a constant.
_TWO_OPERANDS = (
    "Add", "BatchNormalization", "Div", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "Mul", "Pow", "PRelu", "Sub",
)  # fmt: skip


@dataclass
class _Tried:
    """A journal's measurements of one placement."""

    key: str
    latency_ms: float | None = None
    gain: float | None = None
    is_confirmed: bool = False
    failure: str | None = None
    digest: str | None = None
    sha256: str | None = None

    def take(self, line: Mapping[str, Any], reference_gain: float | None) -> None:
        """Add a measurement: the latest one counts, unless it is less thorough."""
        if line["failure"] is not None:
            self.failure = line["failure"]
            return
        sha256 = line.get("sha256")  # without weights: earlier versions recorded no more
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
    """A journal's measurements of all placements, by id."""

    folder: Path
    tried: dict[str, _Tried] = field(default_factory=dict)
    has_digests: bool = False

    def file_of(self, candidate: str) -> Path:
        return self.folder / CANDIDATES / f"{candidate}.onnx"


def list_candidates(run_dir: str | os.PathLike[str]) -> list[Candidate]:
    """List a run's candidates in the order in which they were tried.

    Args:
        run_dir: The run's output folder.

    Raises:
        UsageError: If it is not the folder of a run.
    """
    run = _read(checked_path(run_dir, "folder"))
    sqnr_db: Mapping[str, float] = {}
    shortfalls: Mapping[str, str] = {}
    points: Mapping[str, FrontPoint] = {}
    with contextlib.suppress(QdqtuneError):  # what was measured is listed without them, too
        details = read_details(run.folder / DETAILS) or ReportDetails()
        sqnr_db = details.sqnr_db
        shortfalls = _shortfalls(read_summary(run.folder), details)
    with contextlib.suppress(QdqtuneError):
        points = {point.candidate: point for point in front_of(run.folder)}
    found = []
    for name in run.tried:
        one = replace(
            _candidate(run, name), sqnr_db=sqnr_db.get(name), shortfall=shortfalls.get(name, "")
        )
        found.append(one if name not in points else _on_front(one, points[name]))
    return found


def _shortfalls(summary: Summary, details: ReportDetails) -> dict[str, str]:
    """Return the accuracy limits that candidates miss, by their ids."""
    found = {name: summary.shortfall(db) for name, db in details.sqnr_db.items()}
    ids = details.candidates
    return found | {ids[one.name]: one.reason for one in summary.rejected if one.name in ids}


def _on_front(one: Candidate, point: FrontPoint) -> Candidate:
    role = "result" if point.chosen else "front"
    return replace(one, sqnr_db=point.sqnr_db, metric=point.metric, role=role, shortfall="")


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
    candidate: str | int,
    output: str | os.PathLike[str],
    *,
    force: bool = False,
) -> ExportReport:
    """Write a candidate of a tuning run as a model that does not depend on the run's folder.

    Args:
        folder: The run's output folder.
        candidate: The candidate's id, as listed by `list_candidates`, or the number of a point of
            the run's front, from 1 for the fastest.
        output: Where to write.
        force: Whether an existing file may be replaced.

    Raises:
        UsageError: If the folder is not a run's, or there is no such candidate.
        ModelError: If the candidate's file is missing, or is not the one that was measured.
        OutputError: If the output can't be written.
    """
    target = checked_path(output, "output")
    if isinstance(candidate, int):
        ExportConfig(pareto=candidate, force=force)
        return _export_point(checked_path(folder, "folder"), candidate, target, force=force)
    ExportConfig(candidate=candidate, force=force)
    run = _read(checked_path(folder, "folder"))
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
    _check_target(target, file, force=force)
    model = load_model(file)
    known = run.tried[candidate]
    if known.digest is None and run.has_digests:
        raise ModelError(
            f"{file} can't be checked against what was measured: the line with its digest in "
            f"{JOURNAL} is damaged or missing.",
            "Run the same `qdqtune tune` again: it writes the candidates anew.",
        )
    if read(model).placement.digest() != known.key or not _is_unchanged(file, known):
        raise ModelError(
            f"{file} is not what was measured as {candidate}: the file, or its weights in "
            f"{WEIGHTS_FILE}, were changed since, or come from another run.",
            "Run the same `qdqtune tune` again: it writes the candidates anew. The others may be "
            f"sound: `qdqtune export {folder} --list`.",
        )
    return ExportReport(
        _written(model, target, run.folder, force=force), _candidate(run, candidate)
    )


def _check_target(target: Path, file: Path, *, force: bool) -> None:
    """Refuse to write into the folder of candidates, or over other files."""
    if file.parent.name == CANDIDATES and real_path(target).parent == real_path(file).parent:
        raise OutputError(
            f"{target} would lie among the candidates of the run.", "Choose another folder."
        )
    check_targets(target, None, file, force=force)


def _written(model: ir.Model, target: Path, folder: Path, *, force: bool) -> Path:
    # Candidates share a weights file; an exported model stores weights as the original model did.
    model.meta[EXTERNAL] = bool(external_files(folder / BASELINE))
    return save_model(model, target, force=force)


def _export_point(folder: Path, number: int, target: Path, *, force: bool) -> ExportReport:
    """Write a point of a run's front."""
    points = front_of(folder)
    if not 1 <= number <= len(points):
        raise UsageError(
            f"The front of {folder} has no point {number}: it has {len(points)}.",
            f"Choose one of those in {folder / PARETO}, from 1 for the fastest.",
        )
    point = points[number - 1]
    name = Path(point.file)
    is_ours = name.suffix == ".onnx" and name.parent in (Path(), Path(CANDIDATES))
    file = folder / name
    if not is_ours or not file.is_file() or model_digest(file) != point.digest:
        raise ModelError(
            f"{file} is not what was measured as point {number} of the front: it is missing, or it "
            "was changed since.",
            "Run the same `qdqtune tune` again: it writes the front anew.",
        )
    _check_target(target, file, force=force)
    written = _written(load_model(file), target, folder, force=force)
    found = Candidate(point.candidate, point.qdq_pairs, point.latency_ms, point.speedup, None)
    return ExportReport(written, _on_front(found, point))


def front_of(folder: Path) -> tuple[FrontPoint, ...]:
    """Return the front of a run, fastest first.

    Raises:
        UsageError: If the folder has none.
        ModelError: If its file is damaged.
    """
    file = folder / PARETO
    if not file.is_file():
        raise UsageError(
            f"{folder} has no front: there is no {PARETO}.",
            "Name the --output_dir of a `qdqtune tune` that found a faster model.",
        )
    try:
        return Front.from_dict(parse_json(read_text(file), PARETO), str(file)).points
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(
            f"{file} is damaged: {error}.", "Run the same `qdqtune tune` again."
        ) from None


def _is_unchanged(file: Path, known: _Tried) -> bool:
    """Whether a candidate's file and weights are as the run wrote them.

    For older runs without digests, a warning lists what can't be checked.
    """
    if known.digest is not None:
        return model_digest(file) == known.digest
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
            file, listed(unchecked),
        )  # fmt: skip
    return True


def _checksum(tensor: onnx.TensorProto, file: Path) -> tuple[tuple[int, int], int]:
    """Return a tensor's position in its file, and the checksum of its bytes."""
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

    def tried(key: str) -> _Tried:
        return by_key.setdefault(key, _Tried(key))

    for line in whole_lines(journal):
        if line["kind"] == "candidate":
            run.tried[line["id"]] = tried(line["key"])
        elif line["kind"] == "file":
            tried(line["key"]).digest = line["digest"]
            run.has_digests = True
        elif line["kind"] == "measurement":
            reference, is_float = tried(line["reference"]), line["reference"] == _FLOAT
            tried(line["candidate"]).take(line, 0.0 if is_float else reference.gain)
            if is_float:  # it is the reference, and rarely a candidate
                reference.gain = 0.0
                reference.latency_ms = line["reference_ms"] or reference.latency_ms
    return run


def _quantized_tensors(file: Path) -> int | None:
    try:
        nodes = parse_model(file).graph.node
    except QdqtuneError:  # one bad file must not hide the others
        return None
    # A tensor that is quantized in two ways has two DQ nodes, both labelled with its name.
    return len({node.doc_string or node.output[0] for node in nodes if node.op_type == DEQUANTIZE})


def float_nodes(source: AnyModel, *, against: AnyModel | None = None) -> list[str]:
    """Find the nodes of a quantized model that could be quantized, but are not.

    Args:
        source: A Q/DQ model from any tool (a path, a proto or an `onnx_ir.Model`), or the folder of
            a tuning run.
        against: The float model to take the names from; None for the original model of a run, or
            the Q/DQ model itself.

    Returns:
        Their names, in the order of the graph.

    Raises:
        QdqtuneError: For any error that the user can act on, including that nothing is quantized.
    """
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(as_file(source, "source"))
        baseline = None
        if against is not None:
            baseline = stack.enter_context(as_file(against, "against"))
        if file.is_dir():
            return _float_nodes_of(file / FINAL, baseline or file / BASELINE)
        return _float_nodes_of(file, baseline)


def _float_nodes_of(file: Path, against: Path | None) -> list[str]:
    model = load_model(file)
    refuse_integer_ops(model, file)
    placement = strip(model).placement
    if not placement:
        raise ModelError(
            f"{file} has no Q/DQ: every node of it stays float.",
            "Name a quantized model, or a run that found one that is faster.",
        )
    infer_shapes(model)
    stay = list(_float_nodes(model, placement))
    return stay if against is None else _as_named_in(against, stay, model)


def _float_nodes(model: ir.Model, placement: Placement) -> Iterator[str]:
    quantized: set[str | None] = set()
    positions: dict[str | None, set[int]] = defaultdict(set)
    for edge in placement.edges:
        positions[edge.node].add(edge.position)
    tensors = placement.tensors
    for node in model.graph:
        if not is_op(node, *_QUANTIZABLE) or not _is_float(node):
            continue
        if node.name in placement.dynamic:
            continue  # what reads it reads floats
        if _is_quantized(node, positions[node.name], tensors, quantized):
            quantized.add(node.name)
        else:
            yield node.name or ""


def _is_float(node: ir.Node) -> bool:
    """Whether an op reads non-constant floats; unknown types count as float."""
    data = [value for value in node.inputs if value is not None and value.const_value is None]
    return any(value.dtype is None or value.dtype.is_floating_point() for value in data)


def _is_quantized(
    node: ir.Node, positions: Set[int], tensors: Set[str], before: Set[str | None]
) -> bool:
    """Whether an op computes on quantized values, according to the Q/DQ around it.

    A weighted op does if all its operands are dequantized. Other ops may read dequantized values
    only because their producer's result has to be quantized: they count as quantized only if their
    output is quantized, too. An operand may also be the direct result of a quantized weighted op,
    which is then fused with this one.

    Args:
        node: The op.
        positions: The inputs that are dequantized.
        tensors: Tensors that are quantized.
        before: Names of quantized ops before it.
    """
    if is_op(node, *WEIGHTED_OPS):
        return positions >= {0, 1}
    for position, value in enumerate(node.inputs[:2]):
        if value is None or position in positions:
            continue
        if value.const_value is not None and not is_op(node, *_TWO_OPERANDS):
            continue
        producer = value.producer()
        if producer is None or producer.name not in before or not is_op(producer, *_ABSORBING):
            return False
    begins = bool(positions) or is_op(node, *_ACTIVATIONS)
    return begins and _ends_quantized(node.outputs[0], tensors)


def _ends_quantized(value: ir.Value, tensors: Set[str]) -> bool:
    """Whether a value gets quantized after at most passthrough ops and activations."""
    pending, seen = [value], {value}
    while pending:
        value = pending.pop()
        if value.name in tensors:
            return True
        results = [
            user.outputs[0]
            for user, position in value.uses()
            if position == 0 and is_op(user, *COPY_OPS, *_ACTIVATIONS)
        ]
        pending += (result for result in results if result not in seen)
        seen.update(results)
    return False


def _as_named_in(file: Path, stay: list[str], model: ir.Model) -> list[str]:
    """Map the nodes to a float file by name, and add BatchNorms that were folded into them."""
    nodes = parse_model(file).graph.node
    names = Counter(node.name for node in nodes)
    known = {name for name, count in names.items() if name and count == 1}
    if not any(node.name in known for node in model.graph):
        raise UsageError(
            f"{file} has no node of the quantized model, by name.",
            "Name the float model that it was made from.",
        )
    left_out = [name for name in stay if name not in known]
    if left_out:
        _logger.warning(
            "%d nodes that stay float have no name of their own in %s and can't be listed: %s",
            len(left_out), file, ", ".join(left_out[:5]),
        )  # fmt: skip
    listed = known.intersection(stay)
    there = {node.name for node in model.graph}
    return [name for name in _with_batchnorms(nodes, listed, there) if name in known]


def _with_batchnorms(
    nodes: Sequence[onnx.NodeProto], listed: set[str], there: set[str | None]
) -> Iterator[str]:
    producer: dict[str, str] = {}
    for node in nodes:
        folded = node.op_type == "BatchNormalization" and node.name not in there
        if node.name in listed or (folded and producer.get(node.input[0]) in listed):
            yield node.name
        producer.update((output, node.name) for output in node.output)
