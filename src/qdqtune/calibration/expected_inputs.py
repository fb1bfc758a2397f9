"""What a model wants on its inputs, and whether a shape is that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from qdqtune.graph.dims import dims_of
from qdqtune.graph.input_shapes import model_inputs
from qdqtune.records.errors import ModelError, UsageError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class ExpectedInput:
    """What one input takes.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        dims: Sizes, None where the model leaves one open; None if not even the rank is known.
    """

    name: str
    dtype: ir.DataType
    dims: tuple[int | None, ...] | None


def expected_inputs(model: ir.Model) -> list[ExpectedInput]:
    """The inputs that have to be fed, in order.

    Raises:
        ModelError: If an input is not a tensor.
    """
    expected = []
    for value in model_inputs(model):
        if value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise ModelError(
                f"The input {value.name!r} is no tensor, so there can't be data for it.",
                "Export the model with tensors as inputs.",
            )
        dims = dims_of(value)
        sizes = None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
        expected.append(ExpectedInput(value.name or "", value.dtype, sizes))
    return expected


def fits(shape: Shape, dims: Sequence[int | None]) -> bool:
    """Whether a shape has these sizes wherever they are fixed."""
    return len(shape) == len(dims) and all(
        dim is None or size == dim for size, dim in zip(shape, dims, strict=True)
    )


def misfit(where: str, shape: Shape, expected: ExpectedInput) -> UsageError:
    """The error for a shape that an input can't take, with advice for the usual mistakes."""
    dims = expected.dims or ()
    wanted = ", ".join("?" if dim is None else str(dim) for dim in dims)
    what = f"{where} has the shape {shape} for the input {expected.name!r}, which takes ({wanted})."
    return UsageError(what, _advice(shape, dims))


def _advice(shape: Shape, dims: Sequence[int | None]) -> str:
    if dims and dims[0] in (1, None) and fits((1, *shape), dims):
        return "The batch axis is missing: add it with array[np.newaxis]."
    if len(shape) == len(dims) >= 3:
        if fits((shape[-1], *shape[1:-1]), dims[1:]):
            return "It looks channels-last: move the axis with np.moveaxis(array, -1, 1)."
        if fits((*shape[2:], shape[1]), dims[1:]):
            return "It looks channels-first: move the axis with np.moveaxis(array, 1, -1)."
    if len(shape) == len(dims) and fits(shape[1:], dims[1:]):
        return f"Its first axis is too short for one batch of {dims[0]}: give more samples."
    return "Prepare the data as the model gets it in use: same sizes, same order of axes."
