"""Edits that several passes make: new constants and Casts, and nodes taken out."""

from __future__ import annotations

import onnx_ir as ir


def add_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer to a graph; no value may have its name."""
    value = ir.val(name, const_value=tensor)
    graph.register_initializer(value)
    return value


def insert_cast(
    graph: ir.Graph, value: ir.Value, dtype: ir.DataType, name: str, node_name: str
) -> ir.Value:
    """Insert a Cast right behind a value; returns its result, with this name."""
    shape = None if value.shape is None else value.shape.copy()
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
    attributes = [ir.AttrInt64("to", dtype.value)]
    node = ir.Node("", "Cast", [value], attributes, outputs=[result], name=node_name)
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
    return result


def bypass(node: ir.Node) -> bool:
    """Let readers read a node's first input instead of its first result, and remove the node.

    Outputs keep their names: the value that is passed through takes over the name.

    Returns:
        Whether that was possible.
    """
    source, (result, *others) = node.inputs[0], node.outputs
    assert source is not None
    if any(other.uses() or other.is_graph_output() for other in others):
        return False
    if result.is_graph_output():
        producer = source.producer()
        # An output must come from a node of its own graph, and only once.
        if producer is None or producer.graph is not node.graph or source.is_graph_output():
            return False
        take_over(node, source)
    else:
        assert node.graph is not None
        result.replace_all_uses_with(source)
        node.graph.remove(node, safe=True)
    return True


def take_over(node: ir.Node, value: ir.Value) -> None:
    """Let a value replace a node's only result, with its name, type and shape; removes the node."""
    assert node.graph is not None
    result = node.outputs[0]
    result.replace_all_uses_with(value, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    name, result.name = result.name, None
    value.name = name
    value.type, value.shape = result.type or value.type, result.shape or value.shape
