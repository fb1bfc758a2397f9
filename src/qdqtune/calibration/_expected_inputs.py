"""The inputs that a model expects, and how arrays are cast and divided into samples for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from qdqtune.graph._input_shapes import dims_of, model_inputs
from qdqtune.qdq._encoding import Array
from qdqtune.records._errors import ModelError, UsageError

Shape = tuple[int, ...]


# Normalised values are rarely above 10, pixels mostly are above 100.
_PIXEL_LIKE = 100
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExpectedInput:
    """The requirements of one input.

    Attributes:
        name: Name of the input.
        dtype: Element type.
        dims: Sizes, None where the model leaves one open; None if not even the rank is known.
    """

    name: str
    dtype: ir.DataType
    dims: tuple[int | None, ...] | None


def expected_inputs(model: ir.Model) -> list[ExpectedInput]:
    """Return the inputs that must be fed, in order.

    Raises:
        ModelError: If an input is not a tensor.
    """
    expected = []
    for value in model_inputs(model):
        if value.dtype is None or not isinstance(value.type, ir.TensorType):
            raise ModelError(
                f"The input {value.name!r} is not a tensor, so there can't be data for it.",
                "Export the model with tensors as inputs.",
            )
        dims = dims_of(value)
        sizes = None if dims is None else tuple(d if isinstance(d, int) else None for d in dims)
        expected.append(ExpectedInput(value.name or "", value.dtype, sizes))
    return expected


def fits(shape: Shape, dims: Sequence[int | None]) -> bool:
    """Whether a shape matches all fixed dims."""
    return len(shape) == len(dims) and all(
        dim is None or size == dim for size, dim in zip(shape, dims, strict=True)
    )


def _misfit(where: str, shape: Shape, expected: ExpectedInput) -> UsageError:
    """Return the error for a shape that does not fit an input, with advice on common mistakes."""
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


def check_dtype(where: str, dtype: np.dtype[Any], expected: ExpectedInput) -> None:
    """Reject element types that can't be converted, whatever the values.

    Raises:
        UsageError: If it is such a type.
    """
    if _is_text(expected):
        fine = dtype.kind in "UO"
    else:
        fine = _is_float(dtype) or _is_integer(dtype) or _is_raw(dtype, expected)
    if not fine:
        raise UsageError(
            f"{where} holds {dtype}, but the input {expected.name!r} takes {_name(expected)}.",
            f"Convert it first: array.astype({_name(expected)!r}).",
        )


def conform(
    where: str, array: Array, expected: ExpectedInput, warn: Callable[[str], None]
) -> Array:
    """Cast an array to the element type that the model expects.

    Args:
        where: Where the array comes from, for messages.
        array: The array.
        expected: The model's input.
        warn: Called with a message about a conversion that is rarely intended.

    Raises:
        UsageError: If values would change, or are not finite.
    """
    check_dtype(where, array.dtype, expected)
    if _is_text(expected):
        return array.astype(np.str_)
    wanted = _wanted(expected)
    if _is_raw(array.dtype, expected):
        array = array.view(wanted)
    _check_finite(where, array, expected)
    if array.dtype == wanted:
        return array
    if expected.dtype.is_floating_point():
        if _is_integer(array.dtype) and array.dtype.kind != "b":
            kind = array.dtype
            warn(f"{expected.name}: {kind} values are used as they are: were they normalised?")
        return _to_float(where, array, expected)
    return _to_integer(where, array, expected)


def look_at(array: Array, expected: ExpectedInput) -> None:
    """Log values that are legal but rarely intended."""
    if not expected.dtype.is_floating_point() or array.size < 2:
        return
    low, high = float(array.min()), float(array.max())
    if low == high:
        _logger.info("%s is %g everywhere in the first sample", expected.name, low)
    elif max(-low, high) > _PIXEL_LIKE:
        _logger.info(
            "%s is between %g and %g in the first sample: does the model want raw pixels?",
            expected.name, low, high,
        )  # fmt: skip


def _check_finite(where: str, array: Array, expected: ExpectedInput) -> None:
    if not _is_float(array.dtype) or np.isfinite(array).all():
        return
    kind = "NaN" if np.isnan(array).any() else "infinite values"
    raise UsageError(
        f"{where} holds {kind} for the input {expected.name!r}.",
        "Leave the sample out; for a mask, take a large number instead of an infinite one.",
    )


def _to_float(where: str, array: Array, expected: ExpectedInput) -> Array:
    with np.errstate(over="ignore"):
        cast = array.astype(_wanted(expected))
    if not np.isfinite(cast).all():
        raise UsageError(
            f"{where} holds {np.abs(array).max():g} for the input {expected.name!r}, which is too "
            f"large for {_name(expected)}.",
            "Scale the data as the model gets it in use.",
        )
    return cast


def _to_integer(where: str, array: Array, expected: ExpectedInput) -> Array:
    with np.errstate(invalid="ignore"):
        cast = array.astype(_wanted(expected))
    # A wrapped number survives the round trip, but its sign changes.
    lost = (cast.astype(array.dtype) != array) | ((cast < 0) != (array < 0))
    if lost.any():
        raise UsageError(
            f"{where} holds {array[lost].flat[0]} for the input {expected.name!r}, which is no "
            f"{_name(expected)}.",
            "Feed what the model gets in use: indices are whole numbers within its tables.",
        )
    return cast


def _is_text(expected: ExpectedInput) -> bool:
    return expected.dtype == ir.DataType.STRING


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (_is_extension(dtype) and "float" in dtype.name)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu" or (_is_extension(dtype) and "float" not in dtype.name)


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether it is a number type that numpy itself doesn't have, such as bfloat16."""
    return hasattr(ml_dtypes, dtype.name) and dtype.isbuiltin == 2


def _is_raw(dtype: np.dtype[Any], expected: ExpectedInput) -> bool:
    """Whether these are the raw bytes of an extension type, which is how files store them."""
    wanted = _wanted(expected)
    return dtype == np.dtype(f"V{wanted.itemsize}") and _is_extension(wanted)


def _wanted(expected: ExpectedInput) -> np.dtype[Any]:
    return np.dtype(expected.dtype.numpy())


def _name(expected: ExpectedInput) -> str:
    return "text" if _is_text(expected) else _wanted(expected).name


@dataclass(frozen=True)
class Layout:
    """An array viewed as samples.

    Attributes:
        samples: Number of samples.
        rows: Steps along the first axis per sample; None if every sample is the whole array.
        shape: The shape of one sample.
    """

    samples: int
    rows: int | None
    shape: Shape


def lay_out(
    where: str,
    shapes: Mapping[str, Shape],
    inputs: Sequence[ExpectedInput],
    *,
    split_open: bool,
) -> dict[str, Layout]:
    """Find the one way in which the arrays of all inputs hold the same number of samples.

    Samples may be stacked along an additional first axis, or along the existing one in steps of the
    model's batch. An open first axis is taken to be the batch: with `split_open`, every row is a
    sample. A scalar is used for all samples.

    Args:
        where: Where the arrays come from, for messages.
        shapes: The array shapes by input name.
        inputs: The model's inputs.
        split_open: Whether to split along a first axis that the model leaves open.

    Raises:
        UsageError: If a shape does not fit, or the inputs have different numbers of samples.
    """
    ways = {each.name: _ways(where, shapes[each.name], each, split_open) for each in inputs}
    counted = {name: found for name, found in ways.items() if found}
    wanted = [found[0].samples for found in counted.values() if len(found) == 1]
    wanted = wanted[:1] or [found[0].samples for found in counted.values()]
    for samples in (*wanted, 1):
        chosen = {
            name: layout
            for name, found in counted.items()
            for layout in found
            if layout.samples == samples
        }
        if len(chosen) == len(counted):
            scalars = {name: Layout(samples, None, ()) for name in ways if name not in counted}
            return {**chosen, **scalars}
    counts = ", ".join(f"{found[0].samples} for {name!r}" for name, found in counted.items())
    raise UsageError(
        f"{where} has different numbers of samples for its inputs: {counts}.",
        "Every input needs an array for every sample.",
    )


def left_over(shape: Shape, layout: Layout) -> int:
    """Return the number of rows at the end that are too few for a sample."""
    return 0 if layout.rows is None else shape[0] - layout.samples * layout.rows


def is_short(shape: Shape, expected: ExpectedInput) -> bool:
    """Whether it is a batch with too few rows, such as the last one of a data loader."""
    dims = expected.dims
    if not dims or not shape or dims[0] is None:
        return False
    return shape[0] < dims[0] and fits(shape[1:], dims[1:])


def _ways(where: str, shape: Shape, expected: ExpectedInput, split_open: bool) -> list[Layout]:
    """Return every way to view an array as samples, most likely first; none for a scalar."""
    dims = expected.dims
    whole = Layout(1, None, shape)
    if dims is None:
        return [whole]
    if not dims and not shape:
        return []
    if len(shape) == len(dims) + 1 and fits(shape[1:], dims):
        return [Layout(shape[0], 1, shape[1:])]
    if len(shape) == len(dims) and fits(shape[1:], dims[1:]):
        batch = dims[0]
        if batch is None and shape[0]:
            rows = Layout(shape[0], 1, (1, *shape[1:]))
            # A list of numbers is more likely one sample than many samples of one number each.
            return [rows, whole] if split_open and len(dims) > 1 else [whole, rows]
        if batch in (None, shape[0]):
            return [whole]
        if batch and shape[0] > batch:
            return [Layout(shape[0] // batch, batch, (batch, *shape[1:]))]
    raise _misfit(where, shape, expected)
