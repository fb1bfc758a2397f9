"""`shapes`: show a model's shapes, or fix them to sizes and test the result."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import onnx
import onnx_ir as ir

from qdqtune._command_configs import ShapesConfig
from qdqtune.calibration._output_error import batch_agreement
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.engines import _registry as registry
from qdqtune.engines._reference_engine import has_reference, reference_worker
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import check_writable, load_model, publish, save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import (
    Dims,
    Inputs,
    bind_dims,
    changes_fixed,
    dims_of,
    input_dims,
    model_inputs,
    symbols_of,
)
from qdqtune.graph._op_classes import FLOAT_TYPES
from qdqtune.graph._shapes import (
    BatchChange,
    batch_change,
    propagate_batch,
    set_input_dims,
    with_batch,
)
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records._results import Proof, ShapesReport, TensorDims
from qdqtune.workflows._arguments import AnyModel, as_file, checked_path, name_of

_logger = logging.getLogger(__name__)

# Far below the agreement of different kernels for another batch, far above that of another sample.
_AGREE_DB = 30.0


def show_shapes(model: str | os.PathLike[str]) -> ShapesReport:
    """Return the inputs and outputs of a model, as declared in the file.

    Raises:
        ModelError: If it can't be read.
    """
    return _report(os.fspath(model), load_model(model))


def fix_shapes(
    model: AnyModel,
    output: str | os.PathLike[str],
    inputs: ShapesOrRequest | None = None,
    batch_size: int | None = None,
    force: bool = False,
) -> ShapesReport:
    """Write a model whose inputs have given sizes; other dims stay open.

    All dependent shapes are inferred again, and the result is tested before it is put in place.

    Args:
        model: A path, a proto or an `onnx_ir.Model`.
        output: Where to write.
        inputs: Shapes by input, or a request that may also set sizes of symbols; dims that the
            model fixes may change.
        batch_size: Size of the leading dim of every input.
        force: Whether `output` may be replaced.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    ShapesConfig(batch_size=batch_size, force=force)
    request, target = request_of(inputs) or InputRequest(), checked_path(output, "output")
    check_writable(target, force=force)
    with as_file(model) as source:
        loaded = load_model(source)
        declared = input_dims(loaded)
        if batch_size is not None:
            request = with_batch(declared, request, batch_size)
        if not request.shapes and not request.dims:
            raise UsageError(
                "No sizes are given.", "Use --batch_size 8, --dim N=8 or --set NAME:8x3x224x224."
            )
        bound = bind_dims(declared, request, change_fixed=True)
        rewritten = _apply(loaded, declared, bound)
        with TemporaryFolder(target.parent) as folder:
            staged = save_model(loaded, folder / target.name)
            proof = _try_shapes(source, staged, loaded)
            publish(folder, target.parent, force=force)
    return _report(name_of(model), loaded, os.fspath(output), rewritten, proof)


def _apply(model: ir.Model, declared: Inputs, bound: Inputs) -> tuple[str, ...]:
    """Set the inputs' dims and all that depends on them; returns the rewritten nodes."""
    change = batch_change(declared, bound)
    rewritten = propagate_batch(model, change) if change is not None else ()
    written = [dims_of(value) for value in model.graph.outputs]
    new = {name: dims for name, dims in bound.items() if dims is not None}
    set_input_dims(model, new, stale=changes_fixed(declared, bound))
    for value, dims in zip(model.graph.outputs, written, strict=True):
        _keep_symbols(value, dims)
    return rewritten


def _keep_symbols(output: ir.Value, written: Dims | None) -> None:
    """Restore the symbols of an output where its new size is unknown."""
    dims = output.shape
    if written is None or (dims is not None and len(dims) != len(written)):
        return
    known = list(dims) if dims is not None else [None] * len(written)
    output.shape = ir.Shape(
        [
            new if isinstance(new, int) else (old if isinstance(old, str) else None)
            for new, old in zip(known, written, strict=True)
        ]
    )


def _report(
    path: str,
    model: ir.Model,
    output: str | None = None,
    rewritten: tuple[str, ...] = (),
    proof: Proof = Proof.NONE,
) -> ShapesReport:
    return ShapesReport(
        model=path,
        inputs=tuple(_tensor(value) for value in model_inputs(model)),
        outputs=tuple(_tensor(value) for value in model.graph.outputs),
        symbols=symbols_of(input_dims(model)),
        output=output,
        rewritten=rewritten,
        proof=proof,
    )


def _tensor(value: ir.Value) -> TensorDims:
    dtype = value.dtype if isinstance(value.type, ir.TensorType) else None
    return TensorDims(value.name or "", dtype.name.lower() if dtype else "", dims_of(value))


def _try_shapes(source: Path, staged: Path, model: ir.Model) -> Proof:
    """Check a file with new shapes, run it, and compare it sample by sample if possible.

    A fault of the old file does not count against the new one.

    Args:
        source: The original file.
        staged: The new file.
        model: The model in the new file.

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
            with worker.opened(staged) as opened:
                worker.run(opened, _feeds(model))
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


def _is_to_blame(worker: Worker, files: tuple[Path, Path], old: ir.Model, *, changed: bool) -> bool:
    """Whether a new model fails because of its shapes, not the engine or random values."""
    source, staged = files
    if not _runs(worker, source):
        return False
    if not _runs(worker, staged):
        return True
    if not changed:  # the old model would fail on the same inputs
        return all(value.dtype in FLOAT_TYPES for value in model_inputs(old))
    try:
        return _runs(worker, source, _feeds(old))
    except ModelError:
        return False


def _runs(worker: Worker, path: Path, feeds: Feeds | None = None) -> bool:
    """Whether a model opens, and runs on the inputs if there are any."""
    try:
        with worker.opened(path) as opened:
            if feeds is not None:
                worker.run(opened, feeds)
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
