"""Finding where a model leaves the numbers: the first result that is infinite or undefined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qdqtune.calibration.random_inputs import Feeds
from qdqtune.engines.isolated import Worker
from qdqtune.engines.reference_engine import AS_WRITTEN
from qdqtune.graph.constants import constant_of
from qdqtune.graph.files import save_model
from qdqtune.graph.op_classes import is_op

_WATCH = "qdqtune_watch_"


def first_overflow(
    model: ir.Model, rounded: Mapping[str, str], worker: Worker, feeds: Feeds, folder: Path
) -> str:
    """Run a model and look at every float result of it.

    Args:
        model: The model, computing in float32; it gets more outputs.
        rounded: Node name to the value to look at instead of the node's own result.
        worker: Of the reference engine.
        feeds: Inputs.
        folder: Where the model may be written.

    Returns:
        Name of the first node that makes something not finite out of finite numbers; empty if
        there is none.

    Raises:
        WorkerFailure: If the model does not run.
    """
    watched = _watch(model, rounded)
    opened = worker.open(save_model(model, folder / "watched.onnx"), AS_WRITTEN)
    seen = worker.run(opened, feeds)
    worker.release(opened)
    strange = {node for name, node in watched.items() if not np.isfinite(seen[name]).all()}
    for node in watched.values():
        if node in strange and strange.isdisjoint(_sources(node)) and _constants_finite(node):
            return node.name or ""
    return ""


def _watch(model: ir.Model, rounded: Mapping[str, str]) -> dict[str, ir.Node]:
    """Add one output per float result: zero times the sum, which is zero or not a number."""
    graph = model.graph
    by_name = {value.name: value for node in graph for value in node.outputs}
    watched: dict[str, ir.Node] = {}
    zero = ir.Value(
        name=f"{_WATCH}zero",
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape([]),
        const_value=ir.tensor(np.array(0, np.float32), name=f"{_WATCH}zero"),
    )
    graph.register_initializer(zero)
    for node in [node for node in graph if not is_op(node, "Cast", "Constant")]:
        value = by_name.get(rounded.get(node.name or ""), node.outputs[0])
        if value.dtype != ir.DataType.FLOAT or not isinstance(value.type, ir.TensorType):
            continue
        name = f"{_WATCH}{len(watched)}"
        product = ir.node("Mul", [value, zero], name=f"{name}_Mul")
        product.outputs[0].name = f"{name}_product"
        total = ir.node("ReduceSum", [product.outputs[0]], {"keepdims": 0}, name=f"{name}_Sum")
        total.outputs[0].name = name
        total.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        total.outputs[0].shape = ir.Shape([])
        graph.extend([product, total])
        graph.outputs.append(total.outputs[0])
        watched[name] = node
    return watched


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
