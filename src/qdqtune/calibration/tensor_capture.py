"""Values of tensors inside a model, taken from one run of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.helper import make_tensor_value_info

from qdqtune.calibration.random_inputs import Feeds
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.reference_engine import opening_options
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel

_logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

# What is taken from one run at most; the model is run again for the rest.
_BYTES_AT_ONCE = 1 << 28


def capture_tensors(
    base: PreparedModel, worker: Worker, feeds: Feeds, shapes: Mapping[str, Shape]
) -> Iterator[tuple[str, Array]]:
    """Values of tensors as they are in a run; placeholders where the model doesn't run that way.

    Args:
        base: The model.
        worker: Of the reference engine.
        feeds: What it is run on.
        shapes: Names of the tensors, and what to make up otherwise.
    """
    given = [name for name in shapes if name in feeds]
    for name in given:
        yield name, np.asarray(feeds[name])
    for part in _parts(base.index, {n: s for n, s in shapes.items() if n not in feeds}):
        try:
            found = _run(base, worker, feeds, part)
        except WorkerFailure as failure:
            _logger.info(
                "values inside the model are placeholders, since it does not run: %s", failure
            )
            found = {}
        for name in part:
            dtype = base.index.dtype(name) or ir.DataType.FLOAT
            values = found.get(name)
            yield name, _placeholder_values(shapes[name], dtype) if values is None else values


def _parts(index: GraphIndex, shapes: Mapping[str, Shape]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, shape in shapes.items():
        dtype = index.dtype(name)
        more = math.prod(shape) * (dtype.itemsize if dtype is not None else 4)
        if part and size + more > _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(name)
        size += int(more)
    if part:
        yield part


def _run(
    base: PreparedModel, worker: Worker, feeds: Feeds, tensors: Sequence[str]
) -> dict[str, Array]:
    proto = onnx.ModelProto.FromString(base.whole())
    del proto.graph.output[:]
    for name in tensors:
        dtype = base.index.dtype(name)
        kind = dtype.value if dtype is not None else onnx.TensorProto.UNDEFINED
        proto.graph.output.append(make_tensor_value_info(name, kind, None))
    path = base.write_for_now(proto.SerializeToString(), "tapped")
    try:
        opened = worker.open(path, opening_options(len(base.nodes)))
        found = worker.run(opened, feeds)
        worker.release(opened)
    finally:
        path.unlink(missing_ok=True)
    return dict(found)


def _placeholder_values(shape: Shape, dtype: ir.DataType) -> Array:
    """Small numbers of one sign for floats; zeros for what may be an index."""
    values = np.zeros(shape) if dtype.is_integer() else np.linspace(0.1, 1.0, math.prod(shape))
    return values.reshape(shape).astype(dtype.numpy())
