"""Edits that several passes make, and parts that passes must preserve: bodies, functions, Q/DQ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph._op_classes import BODY_TYPES, QDQ_OPS, bodies_of, has_body, is_op

#: Ops with bit-identical results wherever they are computed: they move numbers, or round once, as
#: IEEE 754 requires. An Exp, a fast square root or a sum in another order may differ in the last
#: bit, and so would a scale.
ROUNDED_ALIKE = frozenset(
    {
        "Abs", "Add", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "Div",
        "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater",
        "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg", "Not",
        "ReduceMax", "ReduceMin", "Relu", "Reshape", "Round", "Shape",
        "Sign", "Size", "Slice", "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze",
        "Where",
    }
)  # fmt: skip


@contextmanager
def bodies_aside(model: ir.Model, *, but: Collection[ir.Node] = ()) -> Iterator[frozenset[ir.Node]]:
    """Remove bodies and functions from the model temporarily, so that no pass rewrites them.

    Values that bodies read from the main graph still count as read, and are updated when they are
    replaced. Once a node is removed, its bodies read nothing.

    Args:
        model: The model.
        but: Nodes that keep their bodies.

    Yields:
        The nodes whose bodies were removed.
    """
    functions = dict(model.functions)
    nodes = [node for node in model.graph if has_body(node)]
    held = [(node, dict(node.attributes)) for node in nodes if node not in but]
    try:
        model.functions.clear()
        for node, attributes in held:
            for name, attribute in attributes.items():
                if attribute.type in BODY_TYPES:
                    del node.attributes[name]
        yield frozenset(node for node, _ in held)
    finally:
        model.functions.update(functions)
        for node, attributes in held:
            node.attributes.clear()
            node.attributes.update(attributes)
        for node in nodes:
            if node.graph is None:
                _read_nothing(node)


def drop_unused_nodes(model: ir.Model) -> None:
    """Remove unused nodes and weights, in place; bodies are not changed."""
    gone = True
    while gone:  # values that the bodies of removed nodes read may be unused now
        with bodies_aside(model) as held:
            passes.RemoveUnusedNodesPass()(model)
        gone = any(node.graph is None for node in held)


def _read_nothing(node: ir.Node) -> None:
    for graph in bodies_of(node):
        for inner in ir.traversal.RecursiveGraphIterator(graph):
            inner.resize_inputs(0)


@contextmanager
def types_restored(values: Iterable[ir.Value]) -> Iterator[None]:
    """Restore the types and shapes of values on exit."""
    before = [(value, value.type, value.shape) for value in values]
    try:
        yield
    finally:
        for value, kind, shape in before:
            value.type, value.shape = kind, shape


def qdq_count(model: ir.Model) -> Counter[str]:
    """Count the nodes of each quantization op: in the graph, in bodies, in functions."""
    return Counter(node.op_type for node in all_nodes(model) if is_op(node, *QDQ_OPS))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield every node of the graph, of bodies and of functions."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def holds_qdq(node: ir.Node) -> bool:
    """Whether a node is a quantization op, or has one in its bodies."""
    return any(is_op(each, *QDQ_OPS) for each in _with_bodies(node))


def given_to_qdq(model: ir.Model) -> frozenset[ir.Value]:
    """Return every value that is computed from constants alone and read by a Q/DQ node.

    The inputs of a body or function that contains a Q/DQ node count as read by that node.
    """
    constant: set[ir.Value] = set()
    for node in model.graph:
        read = [value for value in node.inputs if value is not None]
        if all(value.const_value is not None or value in constant for value in read):
            constant.update(node.outputs)
    found: set[ir.Value] = set()
    functions = _quantizing_functions(model)
    pending = [
        value
        for node in model.graph
        if _quantizes(node, functions)
        for each in _with_bodies(node)
        for value in each.inputs
    ]
    while pending:
        value = pending.pop()
        if value is None or value not in constant or value in found:
            continue
        found.add(value)
        producer = value.producer()
        # A branch that is always taken may replace its If before it is folded.
        for each in _with_bodies(producer) if producer is not None else ():
            found.update(each.outputs)
            pending += each.inputs
    return frozenset(found)


def _quantizing_functions(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return functions that contain a quantization op, or call such a function."""
    found: set[ir.OperatorIdentifier] = set()
    while more := {
        key
        for key, function in model.functions.items()
        if key not in found and any(_quantizes(node, found) for node in function)
    }:
        found |= more
    return found


def _quantizes(node: ir.Node, functions: Collection[ir.OperatorIdentifier]) -> bool:
    return any(
        is_op(each, *QDQ_OPS) or each.op_identifier() in functions for each in _with_bodies(node)
    )


def _with_bodies(node: ir.Node) -> Iterator[ir.Node]:
    yield node
    for graph in bodies_of(node):
        yield from ir.traversal.RecursiveGraphIterator(graph)


@contextmanager
def pinned(model: ir.Model, *, when: bool = True) -> Iterator[None]:
    """Mark quantization ops of the main graph as used temporarily, so that none is removed."""
    outputs = model.graph.outputs
    firsts = [node.outputs[0] for node in model.graph if when and holds_qdq(node) and node.outputs]
    held = [value for value in firsts if not value.is_graph_output()]
    outputs.extend(held)
    try:
        yield
    finally:
        for _ in held:
            outputs.pop()


def add_constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Add an initializer to a graph; no value may have its name."""
    value = ir.val(name, const_value=tensor)
    graph.register_initializer(value)
    return value


def insert_cast(
    graph: ir.Graph, value: ir.Value, dtype: ir.DataType, name: str, node_name: str
) -> ir.Value:
    """Insert a Cast right after a value; returns its result, which gets this name."""
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
    """Replace a node's only result by a value with its name, type and shape; removes the node."""
    assert node.graph is not None
    result = node.outputs[0]
    result.replace_all_uses_with(value, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    name, result.name = result.name, None
    value.name = name
    value.type, value.shape = result.type or value.type, result.shape or value.shape
