"""Constants of a model in all their forms, and their conversion to another float type."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.graph.op_classes import is_op
from qdqtune.graph.weights import chunks_of, values_of

#: The largest finite number of a float type.
LARGEST = {
    ir.DataType.FLOAT: float(np.finfo(np.float32).max),
    ir.DataType.FLOAT16: float(np.finfo(np.float16).max),
    ir.DataType.BFLOAT16: (2 - 2**-7) * 2.0**127,
}
#: The smallest normal number of a float type.
SMALLEST_NORMAL = {
    ir.DataType.FLOAT: 2.0**-126,
    ir.DataType.FLOAT16: 2.0**-14,
    ir.DataType.BFLOAT16: 2.0**-126,
}

# Ops that preserve the numbers of a constant.
_TRANSPARENT = ("Cast", "CastLike", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# No exporter writes longer chains; querying each node of a chain of 100,000 would take minutes.
_MOST_TRANSPARENT = 32

# Smaller tensors are converted at once, larger ones when they are written.
_LAZY_BYTES = 1 << 12


@dataclass(frozen=True)
class Magnitudes:
    """The range of magnitudes in a constant.

    Attributes:
        size: Number of elements.
        least: The smallest magnitude that is not zero; infinite if there is none.
        most: The largest finite magnitude; zero if there is none.
        lowest: The smallest finite number that is negative; zero if there is none.
    """

    size: int
    least: float
    most: float
    lowest: float


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of an initializer or a Constant node; None for anything that can vary."""
    if value is None or value.is_graph_input():
        return None
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    if not is_op(producer, "Constant") or len(getattr(producer, "attributes", ())) != 1:
        return None
    return ir.convenience.get_const_tensor(value)


def constant_behind(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the constant behind Reshapes and Casts that exporters apply to constants."""
    for _ in range(_MOST_TRANSPARENT):
        producer = value.producer() if value is not None else None
        if producer is None or not is_op(producer, *_TRANSPARENT):
            break
        value = producer.inputs[0]
    return constant_of(value)


def unread_weights(graph: ir.Graph) -> list[ir.Value]:
    """Return weights that no node reads, also in bodies, and that are no inputs or outputs."""
    return [
        value
        for value in graph.initializers.values()
        if not (value.uses() or value.is_graph_output() or value.is_graph_input())
    ]


def magnitudes(tensor: ir.TensorProtocol) -> Magnitudes:
    """Compute the magnitudes of a float tensor, a chunk at a time."""
    least, most, lowest = math.inf, 0.0, 0.0
    for chunk in chunks_of(tensor):
        numbers = np.asarray(chunk).astype(np.float32)
        finite = numbers[np.isfinite(numbers)]
        sizes = np.abs(finite)
        least = min(least, float(np.min(sizes, where=sizes > 0, initial=math.inf)))
        most = max(most, float(np.max(sizes, initial=0.0)))
        lowest = min(lowest, float(np.min(finite, initial=0.0)))
    return Magnitudes(tensor.size, least, most, lowest)


def retyped(tensor: ir.TensorProtocol, dtype: ir.DataType, name: str | None) -> ir.TensorProtocol:
    """Return the tensor in another float type; finite values stay finite.

    A large tensor is converted each time its values are read, so that a model in two types does
    not take the memory of both.
    """

    def make() -> ir.TensorProtocol:
        return ir.Tensor(_cast(values_of(tensor), dtype), dtype, name=name)

    if tensor.nbytes <= _LAZY_BYTES:
        return make()
    return ir.LazyTensor(make, dtype, ir.Shape(tensor.shape.numpy()), name=name)


def _cast(numbers: npt.NDArray[np.generic], dtype: ir.DataType) -> npt.NDArray[np.generic]:
    limit = LARGEST[dtype]
    wide = numbers.astype(np.float32)
    finite = np.clip(wide, -limit, limit)
    with np.errstate(under="ignore"):
        return np.where(np.isinf(wide), wide, finite).astype(dtype.numpy())
