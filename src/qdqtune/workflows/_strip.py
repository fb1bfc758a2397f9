"""`strip`: the float model inside a quantized one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import onnx_ir as ir

from qdqtune._command_configs import StripConfig
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import check_result, check_targets, load_model, save_model, write_text
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._input_shapes import resolve_shapes
from qdqtune.graph._opset import raise_opset
from qdqtune.options import configured_to_file
from qdqtune.qdq import _read_back as read_back
from qdqtune.qdq._preprocess import refuse_integer_ops
from qdqtune.qdq._read_back import ReadResult
from qdqtune.records._errors import ModelError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._quantization import StripReport
from qdqtune.workflows._arguments import AnyModel, as_file, in_form_of, output_file
from qdqtune.workflows._convert import LoadedFile, random_error

# Restored activations may need it: Clip with inputs requires opset 11.
_LEAST_OPSET = 11


@configured_to_file(StripConfig)
def strip(
    model: AnyModel, output: str | os.PathLike[str] | None, config: StripConfig
) -> StripReport:
    """Remove Q/DQ from a model, write the float model inside it, and compare the two.

    Args:
        model: A path, a proto or an `onnx_ir.Model` with Q/DQ.
        output: Where to write; required if `model` is a path.
        config: The settings; any of its fields can be given as a keyword instead.

    Returns:
        The report; its `model` has the same form as the input model.

    Raises:
        QdqtuneError: For any error that the user can act on; also if the model has no Q/DQ.
    """
    request, save_placement, force = config.input_request, config.save_placement, config.force
    with contextlib.ExitStack() as stack:
        path = stack.enter_context(as_file(model))
        target = stack.enter_context(output_file(model, output))
        weights = None
        if config.weights_from is not None:
            weights = stack.enter_context(as_file(config.weights_from, "weights_from"))
        check_targets(target, save_placement, path, weights, force=force)
        stripped, reading = _stripped(path, weights, request)
        with TemporaryFolder(target.parent) as room:
            staged = save_model(stripped, room / "stripped.onnx")
            check_result(staged, path)
            sqnr_db, _ = random_error(LoadedFile.load(staged), LoadedFile.load(path), request)
        save_model(stripped, target, force=force)
        if save_placement is not None:
            text = reading.placement.to_json(fingerprint(stripped))
            write_text(save_placement, text, force=force)
        return StripReport(
            output=target if output is not None else None,
            placement=reading.placement,
            pairs=reading.pairs,
            left=reading.left,
            rounded=reading.rounded,
            corrected_biases=reading.corrected,
            smoothed_inputs=reading.smoothed,
            sqnr_db=sqnr_db,
            model=in_form_of(model, target),
        )


def _stripped(
    path: Path, weights_from: Path | None, request: InputRequest
) -> tuple[ir.Model, ReadResult]:
    """Return the float model inside a file, and the Q/DQ that it had."""
    model = load_model(path)
    refuse_integer_ops(model, path)
    resolve_shapes(model, request)
    raise_opset(model, _LEAST_OPSET)
    originals = load_model(weights_from) if weights_from is not None else None
    if originals is not None:
        fold(originals)
    reading = read_back.strip(model, originals)
    if reading.pairs or reading.placement:
        return model, reading
    if reading.left:
        why = f"its {reading.left} Q and DQ nodes belong to no pair with constant scales"
        hint = "What belongs to no pair stays as it is."
    else:
        why, hint = "there are none", "A float model can be used as it is."
    raise ModelError(f"{path} has no Q/DQ pairs that can be taken out: {why}.", hint)
