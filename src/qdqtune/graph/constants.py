"""Constants of a model, wherever they stand, and their values in another float type."""

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
#: The smallest number of a float type that still has all its digits.
SMALLEST_NORMAL = {
    ir.DataType.FLOAT: 2.0**-126,
    ir.DataType.FLOAT16: 2.0**-14,
    ir.DataType.BFLOAT16: 2.0**-126,
}

# Ops behind which a constant is still the same numbers.
_TRANSPARENT = ("Cast", "CastLike", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
# More of them in a row no exporter writes; who asks for each of 100,000 would walk for minutes.
_MOST_TRANSPARENT = 32

# Below this a tensor is converted at once; above it, when it is written.
_LAZY_BYTES = 1 << 12


@dataclass(frozen=True)
class Magnitudes:
    """What a constant's numbers are like.

    Attributes:
        size: How many there are.
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
    """The constant that a value repeats: exporters reshape and cast constants on the spot."""
    for _ in range(_MOST_TRANSPARENT):
        producer = value.producer() if value is not None else None
        if producer is None or not is_op(producer, *_TRANSPARENT):
            break
        value = producer.inputs[0]
    return constant_of(value)


def unread_weights(graph: ir.Graph) -> list[ir.Value]:
    """The weights that neither a node, in bodies included, nor anybody outside has to do with."""
    return [
        value
        for value in graph.initializers.values()
        if not (value.uses() or value.is_graph_output() or value.is_graph_input())
    ]


def magnitudes(tensor: ir.TensorProtocol) -> Magnitudes:
    """Look at every number of a float tensor, a chunk at a time."""
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
    """The tensor in another float type; what is finite stays finite.

    A large tensor is converted when somebody wants its values, each time, so that a model in two
    types does not take the memory of both.
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
