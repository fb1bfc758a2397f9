"""ONNX's shape inference on a model without its weights, guarded against crashes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from qdqtune.graph.constants import unread_weights
from qdqtune.graph.crash_guard import call_guarded

_logger = logging.getLogger(__name__)

# Constants up to this size may be shapes and axes, whose values inference needs.
_SMALL_BYTES = 1024
# Memory for inference: it copies the model several times, and keeps a few numbers per tensor.
_ROOM_BYTES = 256 << 20
_TIMES_FILE = 64


def infer(model: ir.Model) -> bool:
    """Infer types and shapes, in place.

    Returns:
        Whether anything new was inferred; if inference fails, nothing is.
    """
    with _weights_as_inputs(model):
        proto: onnx.ModelProto = ir.to_proto(model)
    answer = _inferred(proto, follow_values=True) or _inferred(proto, follow_values=False)
    if answer is None:
        _logger.debug("shape inference failed; what the model says itself has to do")
        return False
    return _merge(model, onnx.ModelProto.FromString(answer))


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
        values = {value.name: value for value in _values(graph)}
        for info in (*told.input, *told.output, *told.value_info):
            if info.name in values:
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


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values that inference can add to: a constant has its own type and shape."""
    yield from graph.inputs
    yield from (
        value
        for value in graph.initializers.values()
        if value.const_value is None or value.shape is None or value.type is None
    )
    for node in graph:
        yield from (output for output in node.outputs if output.name)


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
