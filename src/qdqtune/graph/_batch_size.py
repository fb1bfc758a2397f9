"""Changing the batch size of a model that was exported with a fixed one."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from qdqtune.graph._index import FreeNames, value_names
from qdqtune.graph._input_shapes import Dims, Inputs, input_dims
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._shapes import set_input_dims, shapes_restored
from qdqtune.graph._weights import constant_of
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest, shape_text

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
