"""Shapes and element types of intermediate tensors, by ONNX's shape inference without weights.

Changing the batch size of a model that was exported with a fixed one.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.graph._index import FreeNames, results_in, value_names, values_in
from qdqtune.graph._input_shapes import (
    Dim,
    Dims,
    Inputs,
    dims_of,
    evaluate,
    input_dims,
    model_inputs,
)
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._validity import call_guarded
from qdqtune.graph._weights import constant_of, unread_weights
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest, shape_text

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
            "It can't be told which dims are the batch: the inputs don't all start with the same "
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
    declared = input_dims(model)
    marked: dict[str, Dims] = {
        name: (_MARKER_BATCH, *(declared[name] or ())[1:]) for name in change.names
    }
    names = FreeNames(value_names(model))
    reshapes = [
        _Reshape(model, node, names) for node in model.graph if _starts_with(node, change.old)
    ]
    with shapes_restored(model):
        # They may form a chain, so proving them one by one would take an inference for each. All
        # get the new batch at once, and those that turn out not to have it are reverted.
        for reshape in reshapes:
            reshape.put(_MARKER_BATCH)
        set_input_dims(model, marked, stale=True)
        while wrong := [reshape for reshape in reshapes if reshape.is_put and not reshape.is_batch]:
            for reshape in wrong:
                reshape.undo()
            set_input_dims(model, marked, stale=True)
        while found := [reshape for reshape in reshapes if not reshape.is_put and reshape.is_batch]:
            for reshape in found:
                reshape.put(_MARKER_BATCH)
            set_input_dims(model, marked, stale=True)
    changed = [reshape for reshape in reshapes if reshape.is_put]
    for reshape in changed:
        reshape.put(change.new)
        reshape.keep()
    return tuple(reshape.node.name or "" for reshape in changed)


def _starts_with(node: ir.Node, batch: int) -> bool:
    """Whether the node reshapes a computed tensor to a constant shape that starts with `batch`."""
    if not is_op(node, "Reshape") or len(node.inputs) < 2:
        return False
    data, tensor = node.inputs[0], constant_of(node.inputs[1])
    if data is None or data.const_value is not None:
        return False
    return tensor is not None and tensor.size > 0 and int(tensor.numpy()[0]) == batch


class _Reshape:
    """A Reshape that can get its own target; other readers of the constant keep the old one."""

    def __init__(self, model: ir.Model, node: ir.Node, names: FreeNames) -> None:
        target, tensor = node.inputs[1], constant_of(node.inputs[1])
        assert target is not None
        assert tensor is not None
        self.node = node
        self._graph = model.graph
        self._original = target
        self._tensor = tensor
        name = names.new(f"{target.name}_batch")
        self._own = ir.val(name, const_value=tensor)

    @property
    def is_put(self) -> bool:
        """Whether it has its own target."""
        return self.node.inputs[1] is self._own

    @property
    def is_batch(self) -> bool:
        """Whether its input starts with the batch, by the current shapes."""
        data = self.node.inputs[0]
        shape = data.shape if data is not None else None
        return shape is not None and len(shape) > 0 and shape[0] == _MARKER_BATCH

    def put(self, leading: int) -> None:
        """Make the target start with this number."""
        entries = np.array(self._tensor.numpy())
        entries[0] = leading
        self._own.const_value = ir.Tensor(entries, self._tensor.dtype, name=self._own.name)
        if not self.is_put:
            self._graph.register_initializer(self._own)
            self.node.replace_input_with(1, self._own)

    def undo(self) -> None:
        """Restore the previous target."""
        self.node.replace_input_with(1, self._original)
        self._graph.initializers.pop(self._own.name or "")

    def keep(self) -> None:
        """Remove the previous target if nothing reads it."""
        old, producer = self._original, self._original.producer()
        if old.uses() or old.is_graph_output() or old.is_graph_input():
            return
        if producer is not None:
            self._graph.remove(producer, safe=True)
        elif old.is_initializer():
            self._graph.initializers.pop(old.name or "")
