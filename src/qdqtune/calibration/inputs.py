"""Inputs for a model when the user gave none: seeded, random, and legal.

Integers stay within what they index, masks are ones: anything else crashes embeddings or makes
attention see nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import FLOAT_TYPES, is_op
from qdqtune.records.errors import ModelError

_logger = logging.getLogger(__name__)

# Ops behind which the values of an index tensor are still the same indices.
_TRANSPARENT = (
    "Cast", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Transpose",
    "Unsqueeze",
)  # fmt: skip

_REAL_TYPES = FLOAT_TYPES | {ir.DataType.DOUBLE}
_PIXEL_TYPES = frozenset({ir.DataType.UINT8, ir.DataType.INT8})

Feeds = dict[str, npt.NDArray[Any]]


def random_inputs(index: GraphIndex, samples: int, seed: int = 0) -> Iterator[Feeds]:
    """Seeded random inputs, one set at a time.

    Dims that the model leaves open are 1.

    Args:
        index: The model.
        samples: How many sets.
        seed: The same seed gives the same inputs.

    Raises:
        ModelError: If an input is of a type that can't be made up.
    """
    rng = np.random.default_rng(seed)
    makers = [_Maker(index, value) for value in model_inputs(index.model)]
    opened = sorted({dim for maker in makers for dim in maker.open_dims})
    if opened:
        _logger.warning("open dims are taken as 1: %s", ", ".join(opened))
    for _ in range(samples):
        yield {maker.name: maker.make(rng) for maker in makers}


def model_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that have to be fed: old files list their weights as inputs, too."""
    return [value for value in model.graph.inputs if not value.is_initializer()]


class _Maker:
    """Makes values for one input."""

    def __init__(self, index: GraphIndex, value: ir.Value) -> None:
        self.name = value.name or ""
        if value.dtype is None or value.shape is None or value.dtype == ir.DataType.STRING:
            kind = "text" if value.dtype == ir.DataType.STRING else "of unknown type or rank"
            raise ModelError(
                f"No values can be made up for the input {self.name!r}: it is {kind}.",
                "Give calibration data.",
            )
        self.dtype = value.dtype
        dims = [dim if isinstance(dim, int) else None for dim in value.shape]
        self.shape = tuple(1 if dim is None or dim < 0 else dim for dim in dims)
        self.open_dims = [
            f"{self.name}[{axis}]" for axis, dim in enumerate(dims) if dim is None or dim < 0
        ]
        self.limit = _index_limit(index, value) if value.dtype not in FLOAT_TYPES else None

    def make(self, rng: np.random.Generator) -> npt.NDArray[Any]:
        if self.limit is not None:
            return rng.integers(0, self.limit, self.shape).astype(self.dtype.numpy())
        if "mask" not in self.name.lower():
            if self.dtype in _REAL_TYPES:
                return rng.standard_normal(self.shape, np.float32).astype(self.dtype.numpy())
            if self.dtype in _PIXEL_TYPES:
                info = np.iinfo(self.dtype.numpy())
                return rng.integers(info.min, info.max, self.shape, endpoint=True).astype(
                    info.dtype
                )
        return np.ones(self.shape, self.dtype.numpy())


def _index_limit(index: GraphIndex, value: ir.Value) -> int | None:
    """How many rows the input indexes, if it indexes anything; the smallest counts."""
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
    """The number of rows that a node picks from, if this input of it is the picking one."""
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
