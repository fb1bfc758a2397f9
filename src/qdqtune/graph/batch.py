"""Another batch size for a model that was exported with one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qdqtune.graph.input_shapes import Dims, Inputs, input_dims
from qdqtune.graph.op_classes import is_op
from qdqtune.graph.shapes import all_shapes, set_input_dims
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest, shape_text

# Names that converters make up, another one for each dim.
_GENERATED_NAME = re.compile(r"unk__\d+")

# A size that nothing has by chance: where it shows up, the batch got there. Inference follows
# numbers through more ops than it follows symbols.
_MARKER_BATCH = 7919


def with_batch(inputs: Inputs, request: InputRequest, batch_size: int) -> InputRequest:
    """Let a request set the leading dim of every input.

    Args:
        inputs: What the model says.
        request: What the user says beside.
        batch_size: The size.

    Raises:
        UsageError: If the leading dims are not one batch, as far as can be told.
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
    """A batch that was fixed and gets another size.

    Attributes:
        names: The inputs that start with it.
        old: The size that the model was exported with.
        new: The size to come.
        alone: Whether it is the only fixed dim that changes.
    """

    names: tuple[str, ...]
    old: int
    new: int
    alone: bool


def batch_change(declared: Inputs, bound: Inputs) -> BatchChange | None:
    """The change of batch in new dims of the inputs; None if the leading dims don't agree."""
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
    """Put a new batch size where a Reshape has the old one written into it, in place.

    That is done only where the first dim of what is reshaped is the batch for sure: shapes are
    inferred for a batch size that no other dim has, and it must have come through.

    Args:
        model: The model, its inputs still as they were.
        change: What happens to the batch.

    Returns:
        Names of the Reshape nodes that were changed.
    """
    declared = input_dims(model)
    marked: dict[str, Dims] = {
        name: (_MARKER_BATCH, *(declared[name] or ())[1:]) for name in change.names
    }
    before = all_shapes(model)
    taken = _all_names(model)
    reshapes = [
        _Reshape(model, node, taken) for node in model.graph if _starts_with(node, change.old)
    ]
    # One behind the other, so that proving them in order would take an inference for each: all are
    # given the new batch at once, and those that were not to have it lose it again.
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
    for value, shape in before:
        value.shape = shape
    changed = [reshape for reshape in reshapes if reshape.is_put]
    for reshape in changed:
        reshape.put(change.new)
        reshape.keep()
    return tuple(reshape.node.name or "" for reshape in changed)


def _starts_with(node: ir.Node, batch: int) -> bool:
    """Whether the node reshapes something computed to a constant shape that starts so."""
    if not is_op(node, "Reshape") or len(node.inputs) < 2:
        return False
    data, target = node.inputs[:2]
    if data is None or data.const_value is not None or target is None:
        return False
    tensor = ir.convenience.get_const_tensor(target)
    return tensor is not None and tensor.size > 0 and int(tensor.numpy()[0]) == batch


class _Reshape:
    """A Reshape that can have a target of its own; other readers of the constant keep theirs."""

    def __init__(self, model: ir.Model, node: ir.Node, taken: set[str]) -> None:
        target = node.inputs[1]
        assert target is not None
        tensor = ir.convenience.get_const_tensor(target)
        assert tensor is not None
        self.node = node
        self._graph = model.graph
        self._original = target
        self._tensor = tensor
        name = f"{target.name}_batch"
        while name in taken:
            name += "_"
        taken.add(name)
        self._own = ir.Value(
            name=name,
            shape=ir.Shape(tensor.numpy().shape),
            type=ir.TensorType(tensor.dtype),
        )

    @property
    def is_put(self) -> bool:
        """Whether it has its own target now."""
        return self.node.inputs[1] is self._own

    @property
    def is_batch(self) -> bool:
        """Whether what it reshapes starts with the batch, by the shapes as they are now."""
        data = self.node.inputs[0]
        shape = data.shape if data is not None else None
        return shape is not None and len(shape) > 0 and shape[0] == _MARKER_BATCH

    def put(self, leading: int) -> None:
        """Let the target start with this number."""
        entries = np.array(self._tensor.numpy())
        entries[0] = leading
        self._own.const_value = ir.Tensor(entries, self._tensor.dtype, name=self._own.name)
        if not self.is_put:
            self._graph.register_initializer(self._own)
            self.node.replace_input_with(1, self._own)

    def undo(self) -> None:
        """Go back to the target that was."""
        self.node.replace_input_with(1, self._original)
        self._graph.initializers.pop(self._own.name or "")

    def keep(self) -> None:
        """Drop the target that was, if nobody reads it."""
        old, producer = self._original, self._original.producer()
        if old.uses() or old.is_graph_output() or old.is_graph_input():
            return
        if producer is not None:
            self._graph.remove(producer, safe=True)
        elif old.is_initializer():
            self._graph.initializers.pop(old.name or "")


def _all_names(model: ir.Model) -> set[str]:
    names = {out.name or "" for node in model.graph for out in node.outputs}
    return names.union(model.graph.initializers, (value.name or "" for value in model.graph.inputs))
