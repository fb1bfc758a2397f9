"""A model's shapes: shown, and fixed to sizes."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph.batch import batch_change, propagate_batch, with_batch
from qdqtune.graph.dims import dims_of
from qdqtune.graph.files import check_writable, load_model, save_model
from qdqtune.graph.input_shapes import (
    Dims,
    Inputs,
    bind_dims,
    changes_fixed,
    input_dims,
    model_inputs,
    symbols_of,
)
from qdqtune.graph.shapes import set_input_dims
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records.shapes import Proof, ShapesReport, TensorDims
from qdqtune.workflows.arguments import check_arguments
from qdqtune.workflows.model_argument import AnyModel, as_file, name_of
from qdqtune.workflows.shapes_trial import try_shapes


def show_shapes(model: str | os.PathLike[str]) -> ShapesReport:
    """The inputs and outputs of a model, as the file has them.

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
    """Write a model whose inputs have given sizes; dims that nothing is said of stay open.

    All shapes that follow are worked out anew, and the result is tried before it gets its name.

    Args:
        model: A path, a proto or an `onnx_ir.Model`.
        output: Where to write.
        inputs: Shapes by input, or a request with sizes of symbols, too; a dim that the model fixes
            may get another size.
        batch_size: Size of the leading dim of every input.
        force: Whether `output` may be replaced.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    check_arguments(output=output, batch_size=batch_size, force=force)
    request, target = request_of(inputs) or InputRequest(), Path(output)
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
            proof = try_shapes(source, staged, loaded)
            _publish(folder, target.parent, force=force)
    return _report(name_of(model), loaded, os.fspath(output), rewritten, proof)


def _apply(model: ir.Model, declared: Inputs, bound: Inputs) -> tuple[str, ...]:
    """Set the inputs' dims and what follows; says which nodes were rewritten."""
    change = batch_change(declared, bound)
    rewritten = propagate_batch(model, change) if change is not None else ()
    written = [dims_of(value) for value in model.graph.outputs]
    new = {name: dims for name, dims in bound.items() if dims is not None}
    set_input_dims(model, new, stale=changes_fixed(declared, bound))
    for value, dims in zip(model.graph.outputs, written, strict=True):
        _keep_symbols(value, dims)
    return rewritten


def _keep_symbols(output: ir.Value, written: Dims | None) -> None:
    """Let an output have the names it had where its new size can't be told."""
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


def _publish(folder: Path, target: Path, *, force: bool) -> None:
    # Weights first: the model is there only when all of it is.
    for file in sorted(folder.iterdir(), reverse=True):
        check_writable(target / file.name, force=force)
        os.replace(file, target / file.name)


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
