"""Clean up a model: smaller, with the same results and its quantization untouched."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import overload

import onnx
import onnx_ir as ir

from qdqtune._command_configs import OverwriteConfig
from qdqtune.graph._files import check_targets, load_model, parse_model, save_model
from qdqtune.graph._optimizing import optimize_graph
from qdqtune.graph._validity import inconsistency
from qdqtune.records._errors import ModelError
from qdqtune.records._results import OptimizeReport
from qdqtune.workflows._arguments import as_file, in_form_of, output_file

_logger = logging.getLogger(__name__)


@overload
def optimize(
    model: str | os.PathLike[str], output: str | os.PathLike[str] | None, *, force: bool = False
) -> Path: ...
@overload
def optimize(
    model: onnx.ModelProto, output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> onnx.ModelProto: ...
@overload
def optimize(
    model: ir.Model, output: str | os.PathLike[str] | None = None, *, force: bool = False
) -> ir.Model: ...
def optimize(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
) -> Path | onnx.ModelProto | ir.Model:
    """Fold constants and BatchNorms, and remove no-op, duplicate and unused nodes.

    All QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear nodes stay, and scales and zero
    points keep their bits.

    Args:
        model: A model, or its path; a model in memory is not changed.
        output: Where to write the result; required if `model` is a path.
        force: Whether an existing file may be replaced.

    Returns:
        The path written, or a model of the same type as the given one.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    OverwriteConfig(force=force)
    with as_file(model) as path, output_file(model, output) as target:
        optimize_file(path, target, force=force)
        result: Path | onnx.ModelProto | ir.Model = in_form_of(model, target)
        return result


def optimize_file(
    model: str | os.PathLike[str], output: str | os.PathLike[str], *, force: bool = False
) -> OptimizeReport:
    """Optimize a file, like `optimize`.

    Args:
        model: The model's path; if its weights are in files next to it, so are those of the result.
        output: Where to write.
        force: Whether an existing file may be replaced.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    check_targets(output, None, model, force=force)
    loaded = load_model(model)
    bytes_before = _weight_bytes(loaded)
    counts = optimize_graph(loaded)
    _check(ir.to_proto(loaded), Path(model))
    written = save_model(loaded, output, force=force)
    _logger.info("%s: %d nodes left", written, sum(counts.after.values()))
    return OptimizeReport(written, counts, bytes_before, _weight_bytes(loaded))


def _check(result: onnx.ModelProto, given: Path) -> None:
    """Check that the result is valid, unless the input was not."""
    fault = inconsistency(result)
    if not fault:
        return
    if before := inconsistency(parse_model(given)):
        raise ModelError(
            f"The model's types or shapes contradict each other: {before}",
            "Export it again; an engine may run it, but nothing can be derived from it.",
        )
    raise ModelError(
        f"The optimized model would not be valid: {fault}",
        "Nothing was written. This is a bug in qdqtune: please report it with the model.",
    )


def _weight_bytes(model: ir.Model) -> int:
    return sum(
        value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    )
