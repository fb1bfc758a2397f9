"""Memory that a model's tensors will take, computed before it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qdqtune.graph.dims import dims_of
from qdqtune.graph.endless_loops import check_ends
from qdqtune.graph.input_shapes import model_inputs
from qdqtune.graph.shapes import all_shapes, set_input_dims
from qdqtune.records.errors import ModelError
from qdqtune.records.inputs import shape_text
from qdqtune.records.memory_sizes import size_text
from qdqtune.resources.limits import current_limits


@dataclass(frozen=True)
class TensorSize:
    """A tensor that a model computes or reads as input.

    Attributes:
        name: Name of the tensor.
        node: The node that computes it: name and op; empty for an input.
        shape: Its dims.
        nbytes: Its size in bytes.
    """

    name: str
    node: str
    shape: tuple[int, ...]
    nbytes: int


def check_runs(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Make sure that a model fits into memory and terminates, as far as that can be determined.

    Args:
        model: The model; it is not changed.
        shapes: The shape of every input that must be fed.

    Raises:
        ModelError: If it doesn't.
    """
    check_ends(model)
    check_fits(model, shapes)


def check_fits(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> None:
    """Make sure that no tensor of a model exceeds the memory limit of a process.

    Args:
        model: The model; it is not changed.
        shapes: The shape of every input that must be fed.

    Raises:
        ModelError: If one does.
    """
    limit = current_limits().memory_bytes
    if limit is None:
        return
    fed = [
        _size(value, tuple(shapes[value.name or ""]))
        for value in model_inputs(model)
        if value.name in shapes
    ]
    before = all_shapes(model)
    try:
        if not _has_all_shapes(model):
            set_input_dims(model, shapes)
        sizes = [*fed, *_computed(model)]
    finally:
        for value, shape in before:
            value.shape = shape
    large = next((size for size in sizes if size.nbytes > limit), None)
    if large is not None:
        origin = f", which {large.node} computes," if large.node else ""
        raise ModelError(
            f"The tensor {large.name!r}{origin} has the shape {shape_text(large.shape)} and takes "
            f"{size_text(large.nbytes)}: more than the {size_text(limit)} of memory that a process "
            "may have.",
            "Check the model and its input shapes (--shapes), or allow more: --max_memory.",
        )


def _has_all_shapes(model: ir.Model) -> bool:
    return all(
        shape is not None and all(isinstance(dim, int) for dim in shape)
        for value, shape in all_shapes(model)
        if value.name
    )


def _computed(model: ir.Model) -> list[TensorSize]:
    """Return every tensor whose shape is known, including bodies."""
    found = []
    for value, _ in all_shapes(model):
        dims = dims_of(value)
        sizes = tuple(dim for dim in dims or () if isinstance(dim, int))
        if dims is not None and len(sizes) == len(dims):
            found.append(_size(value, sizes))
    return found


def _size(value: ir.Value, shape: tuple[int, ...]) -> TensorSize:
    dtype = value.dtype
    sized = dtype is not None and dtype not in (ir.DataType.STRING, ir.DataType.UNDEFINED)
    bits = dtype.bitwidth if dtype is not None and sized else 8
    node = value.producer()
    name = f"the node {node.name!r} ({node.op_type})" if node is not None else ""
    return TensorSize(value.name or "", name, shape, math.prod(shape) * bits // 8)
