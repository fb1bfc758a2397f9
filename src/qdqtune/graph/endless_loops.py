"""Detects loops that would run for years, from the model alone."""

from __future__ import annotations

import math

import onnx_ir as ir

from qdqtune.graph.op_classes import is_op
from qdqtune.records.errors import ModelError

# The cheapest body takes an engine about a microsecond.
_MOST_TRIPS = 1 << 26


def check_ends(model: ir.Model) -> None:
    """Make sure that no Loop is endless.

    Only certain cases count: a Loop whose condition depends on data may end at any time.

    Args:
        model: The model.

    Raises:
        ModelError: If one is.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if is_op(node, "Loop") and _trips(node) > _MOST_TRIPS and _goes_on(node):
            trips = _trips(node)
            times = f"{int(trips):,} times" if math.isfinite(trips) else "for ever"
            raise ModelError(
                f"The Loop {node.name!r} goes around {times}: nothing in it ends it before.",
                "Check how the model was exported.",
            )


def _trips(node: ir.Node) -> float:
    """Return the maximum trip count; 0 if it is computed."""
    count = node.inputs[0] if node.inputs else None
    if count is None:
        return math.inf
    tensor = ir.convenience.get_const_tensor(count)
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else 0.0


def _goes_on(node: ir.Node) -> bool:
    """Whether the condition is initially true and passed on unchanged."""
    first = node.inputs[1] if len(node.inputs) > 1 else None
    tensor = ir.convenience.get_const_tensor(first) if first is not None else None
    if first is not None and (tensor is None or tensor.size != 1 or not tensor.numpy().item()):
        return False
    body = node.attributes["body"].as_graph()
    value: ir.Value | None = body.outputs[0]
    while value is not None and (producer := value.producer()) is not None:
        if is_op(producer, "Constant"):
            constant = ir.convenience.get_const_tensor(value)
            return constant is not None and constant.size == 1 and bool(constant.numpy().item())
        if not is_op(producer, "Identity", "Cast"):
            return False
        value = producer.inputs[0]
    if value is None or value.is_initializer():
        tensor = value.const_value if value is not None else None
        return tensor is not None and bool(tensor.numpy().all())
    return len(body.inputs) > 1 and value is body.inputs[1]
