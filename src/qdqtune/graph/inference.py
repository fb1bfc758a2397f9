"""ONNX's shape inference on a model whose weights it doesn't see, guarded against its crashes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import onnx
import onnx_ir as ir

from qdqtune.graph.constants import unread_weights
from qdqtune.graph.crash_guard import call_guarded

_logger = logging.getLogger(__name__)

# Constants up to this size may be shapes and axes, whose values inference wants to see.
_SMALL_BYTES = 1024
# What inference may take: it copies the model some times, and keeps a few numbers for each tensor.
_ROOM_BYTES = 256 << 20
_TIMES_FILE = 64


def infer(model: ir.Model) -> bool:
    """Fill in types and shapes that can be told, in place.

    Returns:
        Whether anything became known; if inference fails, nothing does.
    """
    with _weights_as_inputs(model):
        proto: onnx.ModelProto = ir.to_proto(model)
    answer = _inferred(proto, follow_values=True) or _inferred(proto, follow_values=False)
    if answer is None:
        _logger.debug("shape inference failed; what the model says itself has to do")
        return False
    return _merge(model, onnx.ModelProto.FromString(answer))


def _inferred(proto: onnx.ModelProto, *, follow_values: bool) -> bytes | None:
    """The model with shapes; None if inference fails.

    Following the values of tensors that are shapes tells more, and takes memory without end where
    they are made to grow.
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
    """Take over what was found about a value; returns whether that is something new."""
    known = (value.shape, value.type)
    if found.shape is not None and found.shape != value.shape:
        value.shape = found.shape
    if found.type is not None and value.type is None:
        value.type = found.type  # not always a tensor's: a dtype alone would make it one
    elif found.dtype is not None and found.dtype != value.dtype:
        value.dtype = found.dtype
    return (value.shape, value.type) != known


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Those about which there is something to learn: a constant tells its own type and shape."""
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
    """Make inputs of the main graph's weights for a while, and take the large ones' values away.

    Weights that nobody reads are left out: there may be very many of them.
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
