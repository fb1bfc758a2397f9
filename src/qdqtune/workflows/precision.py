"""Convert a model file to another float precision, and measure the error."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration.output_error import output_sqnr
from qdqtune.calibration.overflow import first_overflow
from qdqtune.calibration.random_inputs import Feeds, random_inputs
from qdqtune.engines import registry
from qdqtune.engines.isolated import WorkerFailure
from qdqtune.engines.reference_engine import AS_WRITTEN, has_reference, reference_worker
from qdqtune.graph.constants import unread_weights
from qdqtune.graph.files import check_result, check_writable, load_model, save_model
from qdqtune.graph.half_precision_emulation import compute_in_float32
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.precision import convert_precision
from qdqtune.graph.precision_rules import SENSITIVE_OPS
from qdqtune.graph.precision_types import HALF_TYPES
from qdqtune.graph.shapes import infer_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.errors import EngineError, ModelError, UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.precision import ConvertReport, Precision

_logger = logging.getLogger(__name__)

_EVALUATION_SAMPLES = 2
_NOTHING_SAID = InputRequest()


def convert_model(
    model: str | os.PathLike[str],
    precision: Precision,
    output: str | os.PathLike[str],
    *,
    keep_io: bool = True,
    keep_nodes: Collection[str] = (),
    keep_ops: Collection[str] = (),
    request: InputRequest = _NOTHING_SAID,
    force: bool = False,
) -> ConvertReport:
    """Convert a model to another float type, check it and write it.

    Both models are run on random inputs to compare their outputs; half precision is computed in
    float32 and rounded op by op (`qdqtune.graph.half_precision_emulation`), which matches GPUs and
    runs on CPUs.

    Args:
        model: A model in any precision, with or without Q/DQ.
        precision: The target type.
        output: Where to write.
        keep_io: Whether inputs and outputs keep their types.
        keep_nodes: Names of nodes to leave unchanged.
        keep_ops: Op types to leave unchanged, besides those that always are.
        request: The inputs.
        force: Whether `output` may be replaced.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    source, target = Path(model), Path(output)
    check_writable(target, force=force)
    loaded = load_model(source)
    _check_ops(loaded, keep_ops)
    sensitive = frozenset() if precision is Precision.FP32 else SENSITIVE_OPS
    conversion = convert_precision(
        loaded,
        precision,
        keep_io=keep_io,
        keep_nodes=keep_nodes,
        keep_ops=sensitive.union(keep_ops),
    )
    with TemporaryFolder(target.parent) as folder:
        staged = save_model(loaded, folder / target.name)
        check_result(staged, source)
        sqnr_db, overflow = (
            evaluate_conversion(
                source,
                staged,
                lambda model: random_inputs(GraphIndex(model), _EVALUATION_SAMPLES, request),
            )
            if conversion.modified
            else ({}, "")
        )
        for file in sorted(folder.iterdir(), reverse=True):
            check_writable(target.with_name(file.name), force=force)
            os.replace(file, target.with_name(file.name))
    return ConvertReport(target, conversion, sqnr_db, overflow)


def _check_ops(model: ir.Model, ops: Collection[str]) -> None:
    missing = sorted(set(ops).difference(node.op_type for node in model.graph))
    if missing:
        raise UsageError(f"The model has no {', '.join(missing)}.", "Ops are spelled as in ONNX.")


def evaluate_conversion(
    source: Path, staged: Path, samples: Callable[[ir.Model], Iterable[Feeds]]
) -> tuple[dict[str, float], str]:
    """Return decibels per output and the first node that overflows; nothing if unknown here.

    Args:
        source: The original model.
        staged: The converted model.
        samples: Makes inputs for the original model, in a form that CPUs run.

    Raises:
        UsageError: If no inputs can be generated.
    """
    if not has_reference():
        title = registry.title(registry.REFERENCE)
        _logger.warning("what it costs could not be measured: %s is not installed", title)
        return {}, ""
    with TemporaryFolder() as folder, reference_worker() as worker:
        before, reference, _ = _runnable(source, folder / "before.onnx")
        after, candidate, rounded = _runnable(staged, folder / "after.onnx")
        try:
            sqnr_db = output_sqnr(worker, reference, candidate, samples(before), options=AS_WRITTEN)
            overflow = ""
            if any(db == -math.inf for db in sqnr_db.values()):
                first = next(iter(samples(before)))
                overflow = first_overflow(after, rounded, worker, first, folder)
        except (WorkerFailure, EngineError, ModelError) as failure:
            _logger.warning("what it costs could not be measured here: %s", failure)
            return {}, ""
    return sqnr_db, overflow


def _runnable(path: Path, twin: Path) -> tuple[ir.Model, Path, dict[str, str]]:
    """Return a model that runs on CPUs, its file, and which of its results are rounded."""
    model = load_model(path)
    infer_shapes(model)
    index = GraphIndex(model)
    if not any(index.dtype(name) in HALF_TYPES for name in index.value):
        return model, path, {}
    rounded = compute_in_float32(model)
    for value in unread_weights(model.graph):
        model.graph.initializers.pop(value.name or "")
    return model, save_model(model, twin), rounded
