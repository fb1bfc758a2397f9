"""Shapes and element types of intermediate tensors, by ONNX's shape inference without weights.

Also changes the batch size of a model that was exported with a fixed one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.graph._editing import add_constant, types_restored
from qdqtune.graph._index import FreeNames, results_in, value_names, values_in
from qdqtune.graph._input_shapes import (
    Dim,
    Dims,
    Inputs,
    bound_dim,
    dims_of,
    input_dims,
    model_inputs,
)
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._validity import call_guarded
from qdqtune.graph._weights import constant_of, is_small, unread_weights
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest, shape_text

_logger = logging.getLogger(__name__)

# Constants up to this size may be shapes and axes, whose values inference needs.
_SMALL_BYTES = 1024
# Memory for inference: it copies the model several times, and keeps a few numbers per tensor.
_ROOM_BYTES = 256 << 20
_TIMES_FILE = 64


def infer_shapes(model: ir.Model) -> None:
    """Run ONNX's shape inference on the model in place; weights are not touched or copied.

    If inference fails, the model stays as it is.
    """
    inputs = [value for value in model_inputs(model) if _has_negative_dims(value)]
    with types_restored(inputs):
        # Inference would compute with the -1 that stands for an unknown dim.
        for value in inputs:
            value.shape = ir.Shape(dims_of(value) or ())
        with _weights_as_inputs(model):
            proto: onnx.ModelProto = ir.to_proto(model)
        answer = _inferred(proto, follow_values=True) or _inferred(proto, follow_values=False)
        if answer is None:
            _logger.debug("shape inference failed; what the model says itself has to do")
        else:
            _merge(model, onnx.ModelProto.FromString(answer))


def _has_negative_dims(value: ir.Value) -> bool:
    return any(isinstance(dim, int) and dim < 0 for dim in value.shape or ())


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


def _merge(model: ir.Model, inferred: onnx.ModelProto) -> None:
    pending = [(model.graph, inferred.graph)]
    while pending:
        graph, told = pending.pop()
        values = {value.name: value for value in values_in(graph) if value.name}
        for info in (*told.input, *told.output, *told.value_info):
            # A constant has its own type and shape.
            if info.name in values and not _is_known_constant(values[info.name]):
                _learn(values[info.name], ir.serde.deserialize_value_info_proto(info, None))
        for node, proto in zip(graph, told.node, strict=True):
            pending += (
                (node.attributes[attribute.name].as_graph(), attribute.g)
                for attribute in proto.attribute
                if attribute.HasField("g")
            )


def _learn(value: ir.Value, found: ir.Value) -> None:
    """Copy what was inferred about a value."""
    if found.shape is not None and found.shape != value.shape:
        value.shape = found.shape
    if found.type is not None and value.type is None:
        value.type = found.type  # not always a tensor type: a dtype alone would make it one
    elif found.dtype is not None and found.dtype != value.dtype:
        value.dtype = found.dtype


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
            if tensor is None or not is_small(tensor, _SMALL_BYTES):
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


def variables(graphs: Iterable[ir.Graph]) -> list[ir.Value]:
    """Return every value of some graphs that is not a constant, without bodies in them."""
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
    with types_restored(variables(model.graphs())):
        with types_restored((*model.graph.inputs, *model.graph.outputs)):
            set_input_dims(model, shapes)
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
    for value in variables(model.graphs()):
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
    bound = [bound_dim(dim, sizes) for dim in declared]
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


# Names that converters generate, a different one for each dim.
_GENERATED_NAME = re.compile(r"unk__\d+")

# A size that no dim has by chance: where inference finds it, the dim is the batch. Inference
# follows numbers through more ops than symbols.
_MARKER_BATCH = 7919


def with_batch(inputs: Inputs, request: InputRequest, batch_size: int) -> InputRequest:
    """Return a request that also sets the leading dim of every input.

    Args:
        inputs: The inputs that the model declares.
        request: The rest of the user's request.
        batch_size: The batch size.

    Raises:
        UsageError: If the leading dims are evidently not one batch.
    """
    if batch_size < 1:
        raise UsageError(f"The batch size can't be {batch_size}.", "Sizes are from 1 up.")
    leading = {name: dims[0] for name, dims in inputs.items() if dims}
    fixed = {dim for dim in leading.values() if isinstance(dim, int)}
    named = {d for d in leading.values() if isinstance(d, str) and not _GENERATED_NAME.fullmatch(d)}
    is_open = len(fixed) < len(set(leading.values()))
    if not leading or None in inputs.values() or len(fixed) + len(named) > 1 or (fixed and is_open):
        listed = ", ".join(f"{name}:{shape_text(dims)}" for name, dims in inputs.items())
        flag = f"--dim {min(named)}={batch_size}" if named else "--set NAME:SHAPE"
        raise UsageError(
            "Which dims are the batch is ambiguous: the inputs don't all start with the same "
            f"one ({listed}).",
            f"Say it yourself, for example with {flag}.",
        )
    shapes = dict(request.shapes)
    for name in leading:
        rest = shapes.get(name, (None,) * len(inputs[name] or ()))
        if rest and rest[0] not in (None, batch_size):
            raise UsageError(
                f"The batch is {batch_size}, but the shape of the input {name!r} starts with "
                f"{rest[0]}.",
                "Leave one of them out.",
            )
        shapes[name] = (batch_size, *rest[1:])
    return replace(request, shapes=shapes)


@dataclass(frozen=True)
class BatchChange:
    """A change of a fixed batch size.

    Attributes:
        names: The inputs whose leading dim is the batch.
        old: The size that the model was exported with.
        new: The new size.
        alone: Whether it is the only fixed dim that changes.
    """

    names: tuple[str, ...]
    old: int
    new: int
    alone: bool


def batch_change(declared: Inputs, bound: Inputs) -> BatchChange | None:
    """Return the change of batch size between two sets of dims; None if leading dims disagree."""
    leading: dict[str, tuple[int, int]] = {}
    others = 0
    for name, dims in bound.items():
        for axis, (old, new) in enumerate(zip(declared[name] or (), dims or (), strict=False)):
            if isinstance(old, int) and isinstance(new, int) and old != new:
                others += axis > 0
                if axis == 0:
                    leading[name] = (old, new)
    if len(set(leading.values())) != 1:
        return None
    (size,) = set(leading.values())
    return BatchChange(tuple(leading), *size, alone=not others)


def propagate_batch(model: ir.Model, change: BatchChange) -> tuple[str, ...]:
    """Write a new batch size into Reshape targets that contain the old one, in place.

    A target is changed only if the first dim of the reshaped tensor is known to be the batch:
    shapes are inferred for a batch size that no other dim has, which must arrive there.

    Args:
        model: The model, its inputs still unchanged.
        change: The change of batch size.

    Returns:
        Names of the Reshape nodes that were changed.
    """
    graph, declared = model.graph, input_dims(model)
    marked: dict[str, Dims] = {
        name: (_MARKER_BATCH, *(declared[name] or ())[1:]) for name in change.names
    }
    names = FreeNames(value_names(model))
    targets = {node: _target(node) for node in graph if _starts_with(node, change.old)}
    # Other readers of a target keep the old one.
    own = {
        node: add_constant(graph, names.new(f"{target.name}_batch"), _starting(target, change.old))
        for node, target in targets.items()
    }

    def put(nodes: Collection[ir.Node], leading: int) -> None:
        for node in nodes:
            own[node].const_value = _starting(targets[node], leading)
        set_input_dims(model, marked, stale=True)

    for node, value in own.items():
        node.replace_input_with(1, value)
    with types_restored(variables(model.graphs())):
        # They may form a chain, so proving them one by one would take one inference each. All get
        # the new batch at once, and those that turn out not to have it are reverted.
        batched = set(targets)
        put(batched, _MARKER_BATCH)
        while wrong := {node for node in batched if not _reads_batch(node)}:
            batched -= wrong
            put(wrong, change.old)
        while found := {node for node in targets.keys() - batched if _reads_batch(node)}:
            batched |= found
            put(found, _MARKER_BATCH)
    for node in targets.keys() - batched:
        node.replace_input_with(1, targets[node])
        graph.initializers.pop(own[node].name or "")
    for node in batched:
        own[node].const_value = _starting(targets[node], change.new)
    for target in {targets[node] for node in batched}:
        _remove_if_unread(target, graph)
    return tuple(node.name or "" for node in targets if node in batched)


def _starts_with(node: ir.Node, batch: int) -> bool:
    """Whether the node reshapes a computed tensor to a constant shape that starts with `batch`."""
    if not is_op(node, "Reshape") or len(node.inputs) < 2:
        return False
    data, tensor = node.inputs[0], constant_of(node.inputs[1])
    if data is None or data.const_value is not None:
        return False
    return tensor is not None and tensor.size > 0 and int(tensor.numpy()[0]) == batch


def _target(reshape: ir.Node) -> ir.Value:
    target = reshape.inputs[1]
    assert target is not None
    return target


def _starting(target: ir.Value, leading: int) -> ir.TensorProtocol:
    """Return the target of a Reshape with another first number."""
    tensor = constant_of(target)
    assert tensor is not None
    entries = np.array(tensor.numpy())
    entries[0] = leading
    return ir.Tensor(entries, tensor.dtype)


def _reads_batch(reshape: ir.Node) -> bool:
    """Whether the input of a Reshape starts with the marker, by the current shapes."""
    data = reshape.inputs[0]
    shape = data.shape if data is not None else None
    return shape is not None and len(shape) > 0 and shape[0] == _MARKER_BATCH


def _remove_if_unread(constant: ir.Value, graph: ir.Graph) -> None:
    producer = constant.producer()
    if constant.uses() or constant.is_graph_output() or constant.is_graph_input():
        return
    if producer is not None:
        graph.remove(producer, safe=True)
    elif constant.is_initializer():
        graph.initializers.pop(constant.name or "")
