"""The float model inside a quantized one."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from pathlib import Path

from qdqtune.calibration._output_error import output_sqnr
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.config import StripConfig
from qdqtune.engines._reference_engine import AS_WRITTEN, has_reference, reference_worker
from qdqtune.engines._worker import WorkerFailure
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import check_result, check_targets, load_model, save_model, write_text
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._opset import raise_opset
from qdqtune.options import configured_to_file
from qdqtune.qdq import _read_back as read_back
from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.records._errors import ModelError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._quantization import StripReport
from qdqtune.workflows._arguments import AnyModel, as_file, in_form_of, output_file

_logger = logging.getLogger(__name__)

_COMPARED_SAMPLES = 2
# Activations that are put back may need it: Clip with inputs came with 11.
_LEAST_OPSET = 11
_NOTHING_SAID = InputRequest()


@configured_to_file(StripConfig)
def strip(
    model: AnyModel, output: str | os.PathLike[str] | None, config: StripConfig
) -> StripReport:
    """Take Q/DQ out of a model; see `strip_qdq`.

    Args:
        model: A path, a proto or an `onnx_ir.Model` with Q/DQ.
        output: Where to write; a must if a path is given.
        config: The settings; any of its fields can be given as a keyword instead.

    Returns:
        What was done; its `model` is in the form in which the model was given.

    Raises:
        QdqtuneError: Whatever the user can act on; also if the model has no Q/DQ.
    """
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(as_file(model))
        target = stack.enter_context(output_file(model, output))
        weights = None
        if config.weights_from is not None:
            weights = stack.enter_context(as_file(config.weights_from, "weights_from"))
        report = strip_qdq(
            path,
            target,
            weights_from=weights,
            save_placement=config.save_placement,
            inputs=config.input_request,
            force=config.force,
        )
        written = report.output if output is not None else None
        return replace(report, output=written, model=in_form_of(model, target))


def strip_qdq(
    model: str | Path,
    output: str | Path,
    *,
    weights_from: str | Path | None = None,
    save_placement: str | os.PathLike[str] | None = None,
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
    check_targets(output, save_placement, model, weights_from, force=force)
    loaded = load_model(model)
    refuse_integer_ops(loaded, model)
    resolve_shapes(loaded, inputs)
    raise_opset(loaded, _LEAST_OPSET)
    originals = load_model(weights_from) if weights_from else None
    if originals is not None:
        fold(originals)
    reading = read_back.strip(loaded, originals)
    if not reading.pairs:
        why = (
            f"its {reading.left} Q and DQ nodes belong to no pair with constant scales"
            if reading.left
            else "there are none"
        )
        raise ModelError(
            f"{model} has no Q/DQ pairs that can be taken out: {why}.",
            "What belongs to no pair stays as it is."
            if reading.left
            else "A float model can be used as it is.",
        )
    with TemporaryFolder(Path(output).parent) as room:
        staged = save_model(loaded, room / "stripped.onnx")
        check_result(staged, Path(model))
        sqnr_db = _compared(Path(model), staged, GraphIndex(loaded), inputs)
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
        sqnr_db=sqnr_db,
    )


def _compared(
    given: Path, stripped: Path, index: GraphIndex, request: InputRequest
) -> dict[str, float]:
    """How far the quantized file is from what was inside it; empty if it can't be known here."""
    if not has_reference():
        return {}
    try:
        with reference_worker() as worker:
            samples = random_inputs(index, _COMPARED_SAMPLES, request)
            return output_sqnr(worker, stripped, given, samples, options=AS_WRITTEN)
    except (WorkerFailure, ModelError) as failure:
        _logger.warning("the two could not be compared: %s", failure)
        return {}
