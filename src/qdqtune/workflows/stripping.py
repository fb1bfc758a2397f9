"""The float model inside a quantized one."""

from __future__ import annotations

import logging
from pathlib import Path

from qdqtune.calibration.inputs import random_inputs
from qdqtune.calibration.quality import AS_WRITTEN, output_sqnr
from qdqtune.engines import registry
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.files import check_writable, load_model, save_model, write_text
from qdqtune.graph.fingerprint import fingerprint
from qdqtune.graph.folding import fold
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.integer_ops import refuse_integer_ops
from qdqtune.qdq.read import strip
from qdqtune.records.errors import ModelError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.stripping import StripReport

_logger = logging.getLogger(__name__)

_COMPARED_SAMPLES = 2
_NOTHING_SAID = InputRequest()


def strip_qdq(
    model: str | Path,
    output: str | Path,
    *,
    weights_from: str | Path | None = None,
    save_placement: str | Path | None = None,
    inputs: InputRequest = _NOTHING_SAID,
    force: bool = False,
) -> StripReport:
    """Take Q/DQ out of a model and write the float model inside it.

    Args:
        model: A Q/DQ model.
        output: Where to write.
        weights_from: A float model whose weights replace the dequantized ones.
        save_placement: Where to write what was quantized.
        inputs: Shapes, ranges and seed of the inputs on which both are compared.
        force: Whether files may be replaced.

    Raises:
        QdqtuneError: Whatever the user can act on; also if the model has no Q/DQ.
    """
    check_writable(output, force=force)
    if save_placement is not None:
        check_writable(save_placement, force=force)
    loaded = load_model(model)
    refuse_integer_ops(loaded, model)
    originals = load_model(weights_from) if weights_from else None
    if originals is not None:
        fold(originals)
    reading = strip(loaded, originals)
    if not reading.pairs:
        why = (
            f"its {reading.left} Q and DQ nodes belong to no pair with constant scales"
            if reading.left
            else "there are none"
        )
        raise ModelError(
            f"{model} has no Q/DQ pairs that can be taken out: {why}.",
            "A float model can be used as it is.",
        )
    written = save_model(loaded, output, force=force)
    if save_placement is not None:
        text = reading.placement.to_json(fingerprint(loaded))
        write_text(save_placement, text, force=force)
    return StripReport(
        output=written,
        placement=reading.placement,
        pairs=reading.pairs,
        left=reading.left,
        rounded=reading.rounded,
        sqnr_db=_compared(Path(model), written, GraphIndex(loaded), inputs),
    )


def _compared(
    given: Path, stripped: Path, index: GraphIndex, request: InputRequest
) -> dict[str, float]:
    """How far the quantized file is from what was inside it; empty if it can't be known here."""
    if not registry.available("onnxruntime").usable:
        return {}
    try:
        with Worker() as worker:
            samples = random_inputs(index, _COMPARED_SAMPLES, request)
            return output_sqnr(worker, stripped, given, samples, options=AS_WRITTEN)
    except (WorkerFailure, ModelError) as failure:
        _logger.warning("the two could not be compared: %s", failure)
        return {}
