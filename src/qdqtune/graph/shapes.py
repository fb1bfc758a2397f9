"""Shapes and element types of intermediate tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx_ir as ir

from qdqtune.graph.dims import Dim, dims_of, evaluate
from qdqtune.graph.inference import infer
from qdqtune.graph.input_shapes import model_inputs


def infer_shapes(model: ir.Model) -> bool:
    """Run ONNX's shape inference on the model in place; weights are not touched or copied.

    Returns:
        Whether anything new was inferred.
    """
    # Inference takes a dim of -1 as a size and computes with it.
    negative = [
        (value, value.shape)
        for value in model_inputs(model)
        if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape)
    ]
    try:
        for value, _ in negative:
            value.shape = ir.Shape(dims_of(value) or ())
        return infer(model)
    finally:
        for value, shape in negative:
            value.shape = shape


@contextmanager
def at_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Infer the shapes of intermediate tensors for these input shapes, temporarily.

    The graph's own inputs and outputs keep their dims throughout, so that a file written inside the
    context has the same open dims as the model.

    Args:
        model: The model; on exit, every shape is restored.
        shapes: The shape of every input that must be fed.
    """
    before = all_shapes(model)
    signature = [(value, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]
    try:
        set_input_dims(model, shapes)
        for value, shape in signature:
            value.shape = shape
        yield
    finally:
        for value, shape in before:
            value.shape = shape


def set_input_dims(
    model: ir.Model, dims: Mapping[str, Sequence[Dim]], *, stale: bool = False
) -> None:
    """Set the dims of inputs in place, and infer all shapes that follow.

    Declared shapes of other tensors are kept where inference finds nothing: behind ops of other
    domains, for example.

    Args:
        model: The model.
        dims: New dims by input name; inputs not named stay.
        stale: Whether a fixed dim was changed, so that shapes declared in the model can no longer
            be trusted.
    """
    sizes = _sizes_of_symbols(model, dims)
    for value in model_inputs(model):
        new = dims.get(value.name or "")
        if new is not None:
            value.shape = ir.Shape(new)
    declared = {}
    for value in _computed(model, bodies_too=stale):
        if value.shape is not None:
            declared[value] = dims_of(value) or ()
            value.shape = None
    infer_shapes(model)
    filled = [_fill(value, written, sizes) for value, written in declared.items() if not stale]
    if any(filled):
        infer_shapes(model)


def all_shapes(model: ir.Model) -> list[tuple[ir.Value, ir.Shape | None]]:
    """Return every value that is not a constant, including bodies, with its shape to restore."""
    values = [
        value
        for graph in model.graphs()
        for value in (*graph.inputs, *(out for node in graph for out in node.outputs))
    ]
    return [(value, value.shape) for value in values]


def _computed(model: ir.Model, *, bodies_too: bool) -> list[ir.Value]:
    """Return every node output, and optionally the inputs of bodies."""
    values = [out for graph in model.graphs() for node in graph for out in node.outputs]
    if bodies_too:
        values += [v for graph in model.graphs() if graph is not model.graph for v in graph.inputs]
    return values


def _sizes_of_symbols(model: ir.Model, dims: Mapping[str, Sequence[Dim]]) -> dict[str, int]:
    sizes = {}
    for value in model_inputs(model):
        new = dims.get(value.name or "")
        old = dims_of(value)
        if new is not None and old is not None and len(new) == len(old):
            pairs = zip(old, new, strict=True)
            sizes.update({a: b for a, b in pairs if isinstance(a, str) and isinstance(b, int)})
    return sizes


def _fill(value: ir.Value, declared: Sequence[Dim], sizes: Mapping[str, int]) -> bool:
    """Fill in declared dims where inference found nothing; returns whether it did."""
    bound: list[Dim] = [
        (evaluate(dim, sizes) or dim) if isinstance(dim, str) else dim for dim in declared
    ]
    found = value.shape
    if found is None:
        value.shape = ir.Shape(bound)
        return True
    if len(found) != len(bound):
        return False
    merged = [
        b if isinstance(b, int) and not isinstance(a, int) else a
        for a, b in zip(found, bound, strict=True)
    ]
    if merged == list(found):
        return False
    value.shape = ir.Shape(merged)
    return True
