"""Control-flow bodies and local functions: kept unchanged while the main graph is rewritten."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as passes

_BODY_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def has_body(node: ir.Node) -> bool:
    """Whether a node has subgraphs."""
    return any(attribute.type in _BODY_TYPES for attribute in node.attributes.values())


def bodies_of(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the subgraphs of a node, without nested ones."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


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
                if attribute.type in _BODY_TYPES:
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
    while gone:  # what the bodies of removed nodes read may be unused now
        with bodies_aside(model) as held:
            passes.RemoveUnusedNodesPass()(model)
        gone = any(node.graph is None for node in held)


def _read_nothing(node: ir.Node) -> None:
    for graph in bodies_of(node):
        for inner in ir.traversal.RecursiveGraphIterator(graph):
            inner.resize_inputs(0)


@contextmanager
def body_shapes_kept(model: ir.Model) -> Iterator[None]:
    """Discard on exit what was inferred about values inside bodies."""
    before = [
        (value, value.type, value.shape)
        for graph in model.graphs()
        if graph is not model.graph
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs))
    ]
    try:
        yield
    finally:
        for value, kind, shape in before:
            value.type, value.shape = kind, shape
