"""Trying a model that got other shapes, before it gets its name."""

from __future__ import annotations

import logging
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune.calibration.batch_check import batch_agreement
from qdqtune.calibration.random_inputs import Feeds, random_inputs
from qdqtune.engines import registry
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.reference_engine import has_reference, reference_worker
from qdqtune.graph.batch import BatchChange, batch_change
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import changes_fixed, input_dims, model_inputs
from qdqtune.graph.op_classes import FLOAT_TYPES
from qdqtune.records.errors import ModelError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.shapes import Proof

_logger = logging.getLogger(__name__)

# Far below what other kernels for another batch make of it, far above another sample's values.
_AGREE_DB = 30.0


def try_shapes(source: Path, staged: Path, model: ir.Model) -> Proof:
    """Check a file with new shapes, run it, and compare it sample by sample where that makes sense.

    A fault that the old file has, too, is not held against the new one.

    Args:
        source: The file as it was.
        staged: The new file.
        model: What the new file holds.

    Raises:
        ModelError: If the new one does not work and the old one does.
    """
    old = load_model(source)
    declared, dims = input_dims(old), input_dims(model)
    changed = changes_fixed(declared, dims)
    fault = _fault(staged)
    if fault and not _fault(source):
        raise _not_working(fault, changed)
    proof = Proof.NONE if fault else Proof.INFERENCE
    if not all(of is not None and all(isinstance(d, int) for d in of) for of in dims.values()):
        return proof
    if not has_reference():
        _logger.warning(
            "%s is not installed: the model was not run", registry.title(registry.REFERENCE)
        )
        return proof
    with reference_worker() as worker:
        try:
            _run(worker, staged, _feeds(model))
        except ModelError as error:
            _logger.warning("the model was not run: %s", error)
            return proof
        except WorkerFailure as failure:
            if _is_to_blame(worker, (source, staged), old, changed=changed):
                raise _not_working(str(failure), changed) from None
            _logger.warning(
                "the model does not run on random inputs, so it is untried: %s", failure
            )
            return proof
        change = batch_change(declared, dims)
        if change is None or not change.alone:
            return Proof.RUN
        return _compare(worker, source, staged, (old, model), change)


def _fault(path: Path) -> str:
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())
    return ""


def _not_working(why: str, changed: bool) -> ModelError:
    hint = (
        "A size is written into the model at this node or before it. Export the model again, with "
        "dynamic axes or with these shapes."
        if changed
        else "Choose other sizes."
    )
    return ModelError(f"The model does not work at these shapes: {why}", hint)


def _run(worker: Worker, path: Path, feeds: Feeds) -> None:
    opened = worker.open(path)
    worker.run(opened, feeds)
    worker.release(opened)


def _is_to_blame(worker: Worker, files: tuple[Path, Path], old: ir.Model, *, changed: bool) -> bool:
    """Whether it is the shapes that a new model fails on, not the engine or random values."""
    source, staged = files
    if not _opens(worker, source):
        return False
    if not _opens(worker, staged):
        return True
    if not changed:  # then the old model fails on the same inputs
        return all(value.dtype in FLOAT_TYPES for value in model_inputs(old))
    try:
        _run(worker, source, _feeds(old))
    except (WorkerFailure, ModelError):
        return False
    return True


def _opens(worker: Worker, path: Path) -> bool:
    try:
        worker.release(worker.open(path))
    except WorkerFailure:
        return False
    return True


def _compare(
    worker: Worker,
    source: Path,
    staged: Path,
    models: tuple[ir.Model, ir.Model],
    change: BatchChange,
) -> Proof:
    grows = change.new > change.old
    small, large = (source, staged) if grows else (staged, source)
    old, new = models
    sizes = {
        name: (max(change.old, change.new), *dims[1:]) if name in change.names else dims
        for name, dims in input_dims(new).items()
        if dims is not None
    }
    shapes = {name: tuple(d for d in of if isinstance(d, int)) for name, of in sizes.items()}
    feeds = _feeds(new if grows else old, shapes)
    try:
        decibels = batch_agreement(worker, small, large, feeds, change.names)
    except WorkerFailure as failure:
        _logger.warning("the two batch sizes could not be compared: %s", failure)
        return Proof.RUN
    wrong = [name for name, db in decibels.items() if db < _AGREE_DB]
    if wrong:
        raise ModelError(
            f"At batch {change.new} the model would mix up its samples: the output {wrong[0]!r} "
            f"is not what each of them gives at batch {change.old}.",
            "The old batch is written into it. Export it again, with dynamic axes or this batch.",
        )
    return Proof.COMPARED if decibels else Proof.RUN


def _feeds(model: ir.Model, shapes: dict[str, tuple[int, ...]] | None = None) -> Feeds:
    # Masks of ones would be the same for every sample.
    masks = {
        value.name or "": (0, 1)
        for value in model_inputs(model)
        if "mask" in (value.name or "").lower() and value.dtype not in FLOAT_TYPES
    }
    return next(random_inputs(GraphIndex(model), 1, InputRequest(shapes or {}, ranges=masks)))
