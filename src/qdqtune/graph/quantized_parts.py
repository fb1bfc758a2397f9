"""What belongs to quantization in a graph: kept, whatever else is done to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir

from qdqtune.graph.op_classes import QDQ_OPS, is_op

#: Ops that give the same bits wherever they are computed: they move numbers, or round once, as
#: IEEE 754 wants it. An Exp, a quick square root or a sum in another order may differ in the last
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


def qdq_count(model: ir.Model) -> Counter[str]:
    """How many nodes of each quantization op there are: in the graph, in bodies, in functions."""
    return Counter(node.op_type for node in all_nodes(model) if is_op(node, *QDQ_OPS))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Every node there is: of the graph, of bodies, of functions."""
    yield from ir.traversal.RecursiveGraphIterator(model.graph)
    for function in model.functions.values():
        yield from ir.traversal.RecursiveGraphIterator(function)


def holds_qdq(node: ir.Node) -> bool:
    """Whether a node is a quantization op, or has one in its bodies."""
    return is_op(node, *QDQ_OPS) or any(
        is_op(inner, *QDQ_OPS)
        for graph in bodies_of(node)
        for inner in ir.traversal.RecursiveGraphIterator(graph)
    )


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs right inside a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def given_to_qdq(model: ir.Model) -> frozenset[ir.Value]:
    """Every result that is computed from constants alone and that a Q/DQ node is given."""
    constant: set[ir.Value] = set()
    for node in model.graph:
        read = [value for value in node.inputs if value is not None]
        if all(value.const_value is not None or value in constant for value in read):
            constant.update(node.outputs)
    found: set[ir.Value] = set()
    pending = [
        value
        for graph in model.graphs()
        for node in graph
        if is_op(node, *QDQ_OPS)
        for value in node.inputs
    ]
    while pending:
        value = pending.pop()
        if value is None or value not in constant or value in found:
            continue
        found.add(value)
        producer = value.producer()
        pending += producer.inputs if producer is not None else ()
    return frozenset(found)


@contextmanager
def pinned(model: ir.Model, *, when: bool = True) -> Iterator[None]:
    """Let quantization ops of the main graph count as read for a while, so that none is dropped."""
    outputs = model.graph.outputs
    firsts = [node.outputs[0] for node in model.graph if when and holds_qdq(node) and node.outputs]
    held = [value for value in firsts if not value.is_graph_output()]
    outputs.extend(held)
    try:
        yield
    finally:
        for _ in held:
            outputs.pop()
