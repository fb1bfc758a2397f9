"""Removal of nodes that pass their input through unchanged."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.op_classes import is_op, is_standard

# Ops that preserve the order of values: no-ops if the shape stays the same.
_SHAPE_OPS = ("Expand", "Flatten", "Reshape", "Tile")
# From the first opset on, a Dropout does nothing unless training mode is set, which is possible
# from the second on.
_PLAIN_DROPOUT, _TRAINED_DROPOUT = 7, 12


def remove_no_ops(graph: ir.Graph | ir.Function, opset: int) -> int:
    """Remove nodes that do nothing from a graph, body or function, in place.

    Outputs keep their names: the value that is passed through takes over the name.

    Args:
        graph: The graph; bodies inside it are left alone.
        opset: Its ONNX opset version.

    Returns:
        Number of nodes removed.
    """
    count = 0
    for node in graph:
        if _does_nothing(node, opset) and _bypass(node, graph):
            count += 1
    return count


def _does_nothing(node: ir.Node, opset: int) -> bool:
    if not is_standard(node) or not node.inputs or node.inputs[0] is None:
        return False
    source, result = node.inputs[0], node.outputs[0]
    if is_op(node, "Identity"):
        return True
    if is_op(node, "Cast"):
        return source.dtype is not None and source.dtype == _target(node)
    if is_op(node, "Transpose"):
        order = node.attributes.get("perm")
        if order is None or order.is_ref():
            return False
        return tuple(order.as_ints()) == tuple(range(len(order.as_ints())))
    if is_op(node, *_SHAPE_OPS):
        return _is_static(source) and _is_static(result) and source.shape == result.shape
    if is_op(node, "Dropout"):
        return _PLAIN_DROPOUT <= opset < _TRAINED_DROPOUT or (
            opset >= _TRAINED_DROPOUT and (len(node.inputs) < 3 or node.inputs[2] is None)
        )
    return False


def _target(node: ir.Node) -> int | None:
    attribute = node.attributes.get("to")
    return None if attribute is None or attribute.is_ref() else attribute.as_int()


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(dim, int) and dim >= 0 for dim in value.shape)


def _bypass(node: ir.Node, graph: ir.Graph | ir.Function) -> bool:
    """Connect readers to the node's input and remove the node, if possible."""
    source, (result, *others) = node.inputs[0], node.outputs
    assert source is not None
    if any(other.uses() or other.is_graph_output() for other in others):
        return False
    if result.is_graph_output():
        producer = source.producer()
        # An output must come from a node of its own graph, and only once.
        if producer is None or producer.graph is not node.graph or source.is_graph_output():
            return False
        name, source.type, source.shape = result.name, result.type, result.shape
        result.replace_all_uses_with(source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        source.name = name
        return True
    result.replace_all_uses_with(source)
    graph.remove(node, safe=True)
    return True
