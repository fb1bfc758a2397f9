"""Random inputs for a model when the user provides none: seeded and valid.

Integers stay within the range of what they index, and masks are ones: other values would crash
embeddings, or mask everything in an attention.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import input_dims, input_named, model_inputs, resolve_shapes
from qdqtune.graph._measured_shapes import check_ends, measured_shapes
from qdqtune.graph._op_classes import FLOAT_TYPES, is_op
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.resources import current_limits

_logger = logging.getLogger(__name__)

# Ops behind which index values are unchanged.
_TRANSPARENT = (
    "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
)  # fmt: skip

_REAL_TYPES = FLOAT_TYPES | {ir.DataType.DOUBLE}
_PIXEL_TYPES = frozenset({ir.DataType.UINT8, ir.DataType.INT8})

_NOTHING_SAID = InputRequest()

Feeds = dict[str, npt.NDArray[Any]]


def random_inputs(
    index: GraphIndex, samples: int, request: InputRequest = _NOTHING_SAID
) -> Iterator[Feeds]:
    """Yield seeded random inputs, one set at a time.

    Dims that neither the model nor the request determines are 1.

    Args:
        index: The model.
        samples: Number of sets.
        request: Shapes, ranges and the seed; the same request gives the same inputs.

    Raises:
        UsageError: If the request does not fit the model.
        ModelError: If an input is of a type without random values, or a run would never terminate.
    """
    check_ends(index.model)
    shapes = resolve_shapes(index.model, request)
    inputs = input_dims(index.model)
    ranges = {input_named(inputs, name): pair for name, pair in request.ranges.items()}
    makers = {
        name: _maker(index, value, shapes[name], ranges.get(name))
        for value in model_inputs(index.model)
        for name in [value.name or ""]
    }
    rng = np.random.default_rng(request.seed)
    for _ in range(samples):
        yield {name: make(rng) for name, make in makers.items()}


def measured_inputs(model: ir.Model, request: InputRequest) -> Feeds:
    """Return one set of random inputs, at the shapes at which a model is measured.

    Args:
        model: The model, with inferred shapes.
        request: Shapes, ranges and the seed.

    Raises:
        UsageError: If the request does not fit the model, or leaves sizes open.
        ModelError: If an input has a type without random values, or the model is too large for
            memory.
    """
    at = replace(request, shapes=measured_shapes(model, request), dims={})
    return next(random_inputs(GraphIndex(model), 1, at))


def _maker(
    index: GraphIndex, value: ir.Value, shape: tuple[int, ...], bounds: tuple[float, float] | None
) -> Callable[[np.random.Generator], npt.NDArray[Any]]:
    """Return a function that draws values for one input."""
    name, dtype = value.name or "", value.dtype
    if dtype is None or dtype == ir.DataType.STRING:
        kind = "no tensor of a known type" if dtype is None else "text"
        raise ModelError(
            f"Random values can't be generated for the input {name!r}: it is {kind}.",
            "Give calibration data.",
        )
    most_bytes = current_limits().memory_bytes
    if most_bytes is not None and math.prod(shape) * dtype.itemsize > most_bytes:
        raise ModelError(
            f"Random values can't be generated for the input {name!r}: its shape is {shape}, more "
            "than memory could hold.",
            "Check the model's input shapes: `qdqtune shapes MODEL`.",
        )
    target = dtype.numpy()
    rows = _index_limit(index, value) if dtype not in _REAL_TYPES else None
    if bounds is not None:
        _check_bounds(name, dtype, bounds)
        if rows is not None and not -rows <= bounds[0] <= bounds[1] < rows:
            _logger.warning(
                "%s picks from %d rows: values from %s to %s can point outside of them",
                name, rows, *bounds,
            )  # fmt: skip
        return partial(_between, bounds=bounds, shape=shape, dtype=dtype)
    if rows is not None:
        return lambda rng: rng.integers(0, rows, shape).astype(target)
    if "mask" not in name.lower():
        if dtype in _REAL_TYPES:
            return lambda rng: rng.standard_normal(shape, np.float32).astype(target)
        if dtype in _PIXEL_TYPES:
            return partial(_between, bounds=_extremes(dtype), shape=shape, dtype=dtype)
    return lambda _: np.ones(shape, target)


def _check_bounds(name: str, dtype: ir.DataType, bounds: tuple[float, float]) -> None:
    """Make sure that a type can hold the values of a range.

    Raises:
        UsageError: If it can't.
    """
    least, most = _extremes(dtype)
    if not least <= bounds[0] <= bounds[1] <= most:
        raise UsageError(
            f"The range of the input {name!r}, {bounds[0]} to {bounds[1]}, does not fit its type: "
            f"{dtype.name.lower()} holds {least} to {most}.",
            "Give a range within that.",
        )
    if _is_whole(dtype) and any(bound != int(bound) for bound in bounds):
        raise UsageError(
            f"The input {name!r} holds whole numbers, but its range is {bounds[0]} to {bounds[1]}.",
            "Give whole numbers.",
        )


def _extremes(dtype: ir.DataType) -> tuple[float, float]:
    if dtype == ir.DataType.BOOL:
        return 0, 1
    if dtype.is_integer():
        return int(dtype.min), int(dtype.max)
    return float(dtype.min), float(dtype.max)


def _is_whole(dtype: ir.DataType) -> bool:
    return dtype == ir.DataType.BOOL or dtype.is_integer()


def _between(
    rng: np.random.Generator,
    bounds: tuple[float, float],
    shape: tuple[int, ...],
    dtype: ir.DataType,
) -> npt.NDArray[Any]:
    low, high = bounds
    if _is_whole(dtype):
        wide = np.uint64 if dtype == ir.DataType.UINT64 else np.int64
        numbers = rng.integers(int(low), int(high), shape, dtype=wide, endpoint=True)
        return numbers.astype(dtype.numpy())
    position = rng.random(shape)
    # Not low + position * (high - low): the difference may overflow.
    return np.asarray(low * (1.0 - position) + high * position).astype(dtype.numpy())


def _index_limit(index: GraphIndex, value: ir.Value) -> int | None:
    """Return the number of rows that the input indexes, the smallest of several; None if none."""
    limits = []
    pending, seen = [value], {value.name}
    while pending:
        for user, position in pending.pop().uses():
            if position == 0 and is_op(user, *_TRANSPARENT):
                output = user.outputs[0]
                if output.name not in seen:
                    seen.add(output.name)
                    pending.append(output)
            else:
                limits.append(_rows(index, user, position))
    known = [limit for limit in limits if limit]
    return min(known) if known else None


def _rows(index: GraphIndex, user: ir.Node, position: int) -> int | None:
    """Return the number of rows that a node selects from, if this input of it is the index."""
    if position == 1 and is_op(user, "Gather", "GatherElements"):
        data = user.inputs[0]
        shape = index.shape(data.name or "") if data is not None else None
        attribute = user.attributes.get("axis")
        axis = attribute.as_int() if attribute is not None else 0
        return shape[axis] if shape else None
    if position == 0 and is_op(user, "OneHot"):
        depth = user.inputs[1].const_value if user.inputs[1] is not None else None
        return int(depth.numpy().reshape(-1)[0]) if depth is not None else None
    return None
