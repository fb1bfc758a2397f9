"""Inner tensors of a model, observed in one run.

Their values, their shapes, and the first overflow.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor_value_info

from qdqtune.calibration._instrumentation import running, variant
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._tensor_statistics import collect_statistics
from qdqtune.engines._reference_engine import AS_WRITTEN, advice_on, opening_options
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._weights import constant_of
from qdqtune.records._errors import EngineError

_logger = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

# What is taken from one run at most; the model is run again for the rest.
_BYTES_AT_ONCE = 1 << 28

_OTHER_SHAPES = "Check the input shapes: --shapes, --dim."


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
    outputs = []
    for name in tensors:
        dtype = base.index.dtype(name)
        kind = dtype.value if dtype is not None else onnx.TensorProto.UNDEFINED
        outputs.append(make_tensor_value_info(name, kind, None))
    options = opening_options(len(base.nodes))
    with running(base, worker, variant(base, base.nodes, outputs), options) as run:
        return dict(run(feeds))


def _placeholder_values(shape: Shape, dtype: ir.DataType) -> Array:
    """Small numbers of one sign for floats; zeros for what may be an index."""
    values = np.zeros(shape) if dtype.is_integer() else np.linspace(0.1, 1.0, math.prod(shape))
    return values.reshape(shape).astype(dtype.numpy())


def observe_shapes(base: PreparedModel, worker: Worker, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Run the model once and note the shapes that are not known yet.

    They are written into the index's values, but not into the graph's own outputs: those stay as
    open as they are. Inside `graph.shapes.at_shapes` the values are put back at its end.

    Args:
        base: The model.
        worker: Of the reference engine.
        feeds: One set of inputs.

    Returns:
        The shapes found, by tensor; tensors in control-flow bodies are not among them.

    Raises:
        EngineError: If the model does not run.
    """
    unknown = unknown_tensors(base.index)
    if not unknown:
        return {}
    try:
        with running(base, worker, _with_shapes(base, unknown), AS_WRITTEN) as run:
            outputs = run(feeds)
    except WorkerFailure as failure:
        raise EngineError(
            f"The model does not run, so its shapes can't be taken from a run: {failure}",
            advice_on(failure, base.index.model, worker.engine, _OTHER_SHAPES),
        ) from None
    found = {
        tensor: tuple(int(size) for size in outputs[_output(position)])
        for position, tensor in enumerate(unknown)
    }
    for tensor, shape in found.items():
        if tensor not in base.index.outputs:
            base.index.value[tensor].shape = ir.Shape(shape)
    return found


def unknown_tensors(index: GraphIndex) -> list[str]:
    """Every computed tensor of the main graph whose shape is not wholly known."""
    return [
        value.name
        for node in index.nodes
        for value in node.outputs
        if value.name and _is_tensor(value) and not _is_known(index.shape(value.name))
    ]


def _is_known(shape: tuple[int | None, ...] | None) -> bool:
    return shape is not None and all(size is not None and size >= 0 for size in shape)


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _output(position: int) -> str:
    return f"qdqtune_shape_{position}"


def _with_shapes(base: PreparedModel, tensors: list[str]) -> onnx.ModelProto:
    """The base with the tensors' shapes as its only outputs."""
    names = [_output(position) for position in range(len(tensors))]
    nodes = [
        make_node("Shape", [tensor], [name], name=name)
        for tensor, name in zip(tensors, names, strict=True)
    ]
    outputs = [make_tensor_value_info(name, onnx.TensorProto.INT64, [None]) for name in names]
    return variant(base, [*base.nodes, *nodes], outputs)


def first_overflow(
    model: ir.Model, rounded: Mapping[str, str], worker: Worker, feeds: Feeds, folder: Path
) -> str:
    """Run a model and look at every float result of it.

    Args:
        model: The model, computing in float32; its weights move into the folder.
        rounded: Node name to the value to look at instead of the node's own result.
        worker: Of the reference engine.
        feeds: Inputs.
        folder: Where the model may be written.

    Returns:
        Name of the first node that makes something not finite out of finite numbers; empty if
        there is none.

    Raises:
        EngineError: If the model does not run.
    """
    base = PreparedModel(model, folder)
    watched = {}
    for node in base.index.nodes:
        name = rounded.get(node.name or "", node.outputs[0].name or "")
        value = base.index.value.get(name)
        if value is None or value.dtype != ir.DataType.FLOAT or not _is_tensor(value):
            continue
        if not is_op(node, "Cast", "Constant"):
            watched[name] = node
    seen = collect_statistics(base, worker, [feeds], watched, as_written=True)
    strange = {watched[name] for name in seen.strange}
    for node in watched.values():
        if node in strange and strange.isdisjoint(_sources(node)) and _constants_finite(node):
            return node.name or ""
    return ""


def _sources(node: ir.Node) -> Iterator[ir.Node]:
    """The nodes whose results a node reads, Casts looked through."""
    for value in node.inputs:
        producer = value.producer() if value is not None else None
        while producer is not None and is_op(producer, "Cast") and producer.inputs[0] is not None:
            producer = producer.inputs[0].producer()
        if producer is not None:
            yield producer


def _constants_finite(node: ir.Node) -> bool:
    for value in node.inputs:
        tensor = constant_of(value)
        if tensor is not None and tensor.dtype.is_floating_point():
            numbers = tensor.numpy().astype(np.float32)
            if not np.isfinite(numbers).all():
                return False
    return True
