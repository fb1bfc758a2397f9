"""Placing Q/DQ by hand: insert into a float model, strip from a quantized one."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration.inputs import random_inputs
from qdqtune.calibration.minmax import collect_ranges
from qdqtune.calibration.quality import AS_WRITTEN, output_sqnr
from qdqtune.engines import registry
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.native import native_dialect
from qdqtune.graph.files import check_result, check_writable, load_model, save_model, write_text
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.folding import fold
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import DEQUANTIZE, QUANTIZE, is_op
from qdqtune.graph.opset import least_opset, raise_opset
from qdqtune.graph.prepared import PreparedModel
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.dialects import dialect_named
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.read import Reading, strip
from qdqtune.qdq.selection import Selection, select_nodes, select_ops, select_tensors
from qdqtune.qdq.units import merge
from qdqtune.records.errors import ModelError, UsageError
from qdqtune.records.insertion import InsertReport
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import CalibrationSource

_logger = logging.getLogger(__name__)

_CALIBRATION_SAMPLES = 8
_JUDGED_SAMPLES = 2


@dataclass(frozen=True)
class Choice:
    """What a user wants quantized; the parts add up.

    Attributes:
        ops: Op types.
        nodes: Node names.
        tensors: Tensor names.
        placement: A placement file, taken as it is.
    """

    ops: Sequence[str] = ()
    nodes: Sequence[str] = ()
    tensors: Sequence[str] = ()
    placement: str | Path | None = None


def insert_qdq(
    model: str | Path,
    choice: Choice,
    output: str | Path,
    *,
    engine: str = registry.AUTO,
    dialect: str | None = None,
    quant_type: str = "int8",
    seed: int = 0,
    save_placement: str | Path | None = None,
    force: bool = False,
) -> InsertReport:
    """Quantize what was chosen, calibrated, and write the model.

    Args:
        model: A float model.
        choice: What to quantize.
        output: Where to write.
        engine: Whose dialect to write; it need not be installed.
        dialect: A dialect by name, instead of the engine's own on this machine.
        quant_type: One of the dialect's quant types.
        seed: For random calibration inputs.
        save_placement: Where to write the placement, too.
        force: Whether files may be replaced.

    Raises:
        QdqtuneError: Whatever the user can act on.
    """
    if engine == registry.AUTO and not dialect:
        engine = registry.resolve(engine)
    spoken = dialect_named(dialect) if dialect else native_dialect(engine)
    layout = spoken.format_of(quant_type)
    _check_outputs(Path(model), Path(output), save_placement, force=force)
    loaded = _folded_model(Path(model), layout.least_opset)
    selection = select(GraphIndex(loaded), spoken, quant_type, choice)
    with tempfile.TemporaryDirectory(prefix="qdqtune-") as folder, Worker() as worker:
        base = PreparedModel(loaded, Path(folder))
        samples = random_inputs(base.index, _CALIBRATION_SAMPLES, seed)
        _logger.info("calibrating on %d random samples", _CALIBRATION_SAMPLES)
        ranges = collect_ranges(
            base, worker, samples, CalibrationSource.RANDOM, selection.placement
        )
        inserter = Inserter(base, spoken, quant_type, ranges)
        quantized = inserter.model(selection.placement)
        sqnr_db = _judge(base, inserter, selection.placement, worker, seed)
        written = save_model(quantized, output, force=force)
    if save_placement is not None:
        made_for = quantized.metadata_props["qdqtune.float_model"]
        write_text(save_placement, selection.placement.to_json(made_for), force=force)
    return InsertReport(
        output=written,
        dialect=spoken.name,
        quant_type=quant_type,
        quantized=selection.quantized,
        left_float=selection.left_float,
        placement=selection.placement,
        pairs=len(selection.placement.tensors),
        calibration=ranges.source,
        sqnr_db=sqnr_db,
    )


def strip_qdq(
    model: str | Path, output: str | Path, *, weights_from: str | Path | None, force: bool = False
) -> Reading:
    """Take Q/DQ out of a model and write the float model inside it.

    Args:
        model: A Q/DQ model.
        output: Where to write.
        weights_from: A float model whose weights replace the dequantized ones.
        force: Whether `output` may be replaced.

    Returns:
        What was found.

    Raises:
        QdqtuneError: Whatever the user can act on; also if the model has no Q/DQ.
    """
    check_writable(output, force=force)
    loaded = load_model(model)
    originals = load_model(weights_from) if weights_from else None
    if originals is not None:
        fold(originals)
    reading = strip(loaded, originals)
    if not reading.pairs:
        why = (
            f"its {reading.left} Q and DQ nodes belong to no pair with constant scales"
            if reading.left
            else "there is nothing to strip"
        )
        raise ModelError(f"{model} has no Q/DQ pairs that can be taken out: {why}.")
    save_model(loaded, output, force=force)
    return reading


def select(index: GraphIndex, dialect: Dialect, quant_type: str, choice: Choice) -> Selection:
    """Turn a choice into one placement.

    Raises:
        UsageError: If nothing was chosen, nothing of it can be quantized, or something of it is
            not in the model.
    """
    parts = []
    if choice.ops:
        parts.append(select_ops(index, dialect, choice.ops, quant_type))
    if choice.nodes:
        parts.append(select_nodes(index, dialect, choice.nodes, quant_type))
    if choice.tensors:
        parts.append(select_tensors(index, dialect, choice.tensors))
    if choice.placement is not None:
        parts.append(Selection(_read_placement(choice.placement, index)))
    if not parts:
        raise UsageError(
            "Nothing was chosen to be quantized.",
            "Name op types (--ops Conv,MatMul), nodes, tensors, or a placement file.",
        )
    left_float = {name: reason for part in parts for name, reason in part.left_float.items()}
    placement = merge(part.placement for part in parts)
    if not placement:
        reasons = "; ".join(sorted(set(left_float.values())))
        raise UsageError(
            f"Nothing of what was chosen can be quantized{': ' + reasons if reasons else ''}.",
            "Activations such as Relu are quantized as a part of the op before them.",
        )
    quantized = tuple(dict.fromkeys(name for part in parts for name in part.quantized))
    return Selection(placement, quantized, left_float)


def _read_placement(path: str | Path, index: GraphIndex) -> Placement:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The placement file {path} can't be read: {error}.") from None
    placement = Placement.from_json(text, str(path))
    made_for = json.loads(text).get("model")
    if made_for and made_for != fingerprint(index.model):
        _logger.warning("%s was made for another model, or another version of this one", path)
    return placement


def _check_outputs(
    model: Path, output: Path, save_placement: str | Path | None, *, force: bool
) -> None:
    check_writable(output, force=force)
    if save_placement is None:
        return
    check_writable(save_placement, force=force)
    if Path(save_placement).absolute() in (model.absolute(), output.absolute()):
        raise UsageError("The placement can't be written over a model.", "Choose another name.")


def _folded_model(path: Path, opset: int) -> ir.Model:
    """A float model, folded, at an opset in which it can be quantized.

    Raises:
        ModelError: If it can't be read, or has Q/DQ already.
    """
    model = load_model(path)
    if any(is_op(node, QUANTIZE, DEQUANTIZE) for node in model.graph):
        raise ModelError(
            f"{path} has Q/DQ nodes already.", f"Take them out first: qdqtune strip {path} -o …"
        )
    fold(model)
    if raise_opset(model, max(opset, least_opset(GraphIndex(model)))):
        fold(model)
    _logger.info("%s: folded, %d nodes left", path, len(model.graph))
    return model


def _judge(
    base: PreparedModel, inserter: Inserter, placement: Placement, worker: Worker, seed: int
) -> dict[str, float]:
    """The output error, on inputs that were not calibrated with; empty if it can't be known here.

    Raises:
        ModelError: If the result is not a valid model.
        EngineError: If the engine does not run a model in its own dialect.
    """
    native = inserter.dialect is native_dialect("onnxruntime")
    reference = base.write(base.whole(), "reference")
    candidate = inserter.write(placement, "candidate")
    check_result(candidate)
    samples = random_inputs(base.index, _JUDGED_SAMPLES, seed + 1)
    try:
        options = None if native else AS_WRITTEN
        return output_sqnr(worker, reference, candidate, samples, options=options)
    except WorkerFailure as failure:
        if native:
            raise
        _logger.warning("the output error could not be measured here: %s", failure)
        return {}
