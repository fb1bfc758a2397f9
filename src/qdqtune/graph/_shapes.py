"""Shapes and element types of intermediate tensors, by ONNX's shape inference without weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from qdqtune.graph._dims import Dim, dims_of, evaluate
from qdqtune.graph._index import results_in, values_in
from qdqtune.graph._input_shapes import model_inputs
from qdqtune.graph._onnx_checks import call_guarded
from qdqtune.graph._weights import unread_weights

_logger = logging.getLogger(__name__)

# Constants up to this size may be shapes and axes, whose values inference needs.
_SMALL_BYTES = 1024
# Memory for inference: it copies the model several times, and keeps a few numbers per tensor.
_ROOM_BYTES = 256 << 20
_TIMES_FILE = 64


def infer_shapes(model: ir.Model) -> bool:
    """Run ONNX's shape inference on the model in place; weights are not touched or copied.

    Returns:
        Whether anything new was inferred; if inference fails, nothing is.
    """
    with _open_dims(model):
        with _weights_as_inputs(model):
            proto: onnx.ModelProto = ir.to_proto(model)
        answer = _inferred(proto, follow_values=True) or _inferred(proto, follow_values=False)
        if answer is not None:
            return _merge(model, onnx.ModelProto.FromString(answer))
    _logger.debug("shape inference failed; what the model says itself has to do")
    return False


def _inferred(proto: onnx.ModelProto, *, follow_values: bool) -> bytes | None:
    """Return the model with inferred shapes; None if inference fails.

    Following the values of shape tensors infers more, but takes unbounded memory where a model
    makes them grow.
    """
    return call_guarded(
        lambda: onnx.shape_inference.infer_shapes(
            proto, data_prop=follow_values
        ).SerializeToString(),
        _ROOM_BYTES + _TIMES_FILE * proto.ByteSize(),
    )


def _merge(model: ir.Model, inferred: onnx.ModelProto) -> bool:
    modified = False
    pending = [(model.graph, inferred.graph)]
    while pending:
        graph, told = pending.pop()
        values = {value.name: value for value in values_in(graph) if value.name}
        for info in (*told.input, *told.output, *told.value_info):
            # A constant has its own type and shape.
            if info.name in values and not _is_known_constant(values[info.name]):
                found = ir.serde.deserialize_value_info_proto(info, None)
                modified |= _learn(values[info.name], found)
        for node, proto in zip(graph, told.node, strict=True):
            pending += (
                (node.attributes[attribute.name].as_graph(), attribute.g)
                for attribute in proto.attribute
                if attribute.HasField("g")
            )
    return modified


def _learn(value: ir.Value, found: ir.Value) -> bool:
    """Copy what was inferred about a value; returns whether that is new."""
    known = (value.shape, value.type)
    if found.shape is not None and found.shape != value.shape:
        value.shape = found.shape
    if found.type is not None and value.type is None:
        value.type = found.type  # not always a tensor's: a dtype alone would make it one
    elif found.dtype is not None and found.dtype != value.dtype:
        value.dtype = found.dtype
    return (value.shape, value.type) != known


def _is_known_constant(value: ir.Value) -> bool:
    return value.is_initializer() and None not in (value.const_value, value.shape, value.type)


@contextmanager
def _weights_as_inputs(model: ir.Model) -> Iterator[None]:
    """Turn the main graph's weights into inputs temporarily, and hide the values of large ones.

    Unused weights are left out: there may be very many of them.
    """
    graph = model.graph
    weights = list(graph.initializers.values())
    inputs = list(graph.inputs)
    values = [weight.const_value for weight in weights]
    fed, unread = set(inputs), set(unread_weights(graph))
    try:
        for weight, tensor in zip(weights, values, strict=True):
            if weight in unread:
                graph.initializers.pop(weight.name or "")
                continue
            if weight not in fed:
                graph.inputs.append(weight)
            if tensor is not None:
                weight.shape = weight.shape or ir.Shape(tensor.shape.numpy())
                weight.dtype = weight.dtype or tensor.dtype
            if tensor is None or tensor.nbytes > _SMALL_BYTES:
                graph.initializers.pop(weight.name or "")
                weight.const_value = None
        yield
    finally:
        for weight, tensor in zip(weights, values, strict=True):
            weight.const_value = tensor
            graph.initializers.pop(weight.name or "", None)
        for weight in weights:
            graph.initializers.add(weight)
        graph.inputs.clear()
        graph.inputs.extend(inputs)


@contextmanager
def _open_dims(model: ir.Model) -> Iterator[None]:
    """Write dims of -1 as unknown ones temporarily: inference would compute with the number."""
    negative = [
        (value, value.shape)
        for value in model_inputs(model)
        if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape)
    ]
    try:
        for value, _ in negative:
            value.shape = ir.Shape(dims_of(value) or ())
        yield
    finally:
        for value, shape in negative:
            value.shape = shape


@contextmanager
def shapes_restored(model: ir.Model) -> Iterator[None]:
    """Restore on exit the shapes of all values that are not constants, including bodies."""
    before = [(value, value.shape) for value in variables(model)]
    try:
        yield
    finally:
        for value, shape in before:
            value.shape = shape


def variables(model: ir.Model) -> list[ir.Value]:
    """Return every value that is not a constant, including bodies."""
    graphs = list(model.graphs())
    return [value for graph in graphs for value in (*graph.inputs, *results_in(graph))]


@contextmanager
def at_shapes(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Infer the shapes of intermediate tensors for these input shapes, temporarily.

    The graph's own inputs and outputs keep their dims throughout, so that a file written inside the
    context has the same open dims as the model.

    Args:
        model: The model; on exit, every shape is restored.
        shapes: The shape of every input that must be fed.
    """
    signature = [(value, value.shape) for value in (*model.graph.inputs, *model.graph.outputs)]
    with shapes_restored(model):
        set_input_dims(model, shapes)
        for value, shape in signature:
            value.shape = shape
        yield


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
    for value in variables(model):
        is_body_input = value.producer() is None and value.graph is not model.graph
        computed = value.producer() is not None or (stale and is_body_input)
        if computed and value.shape is not None:
            declared[value] = dims_of(value) or ()
            value.shape = None
    infer_shapes(model)
    filled = [_fill(value, written, sizes) for value, written in declared.items() if not stale]
    if any(filled):
        infer_shapes(model)


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
