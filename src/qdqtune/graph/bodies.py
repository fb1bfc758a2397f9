"""Bodies of control flow and local functions: carried through a change of the graph as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx_ir as ir

_BODY_TYPES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def has_body(node: ir.Node) -> bool:
    """Whether a node has a graph inside."""
    return any(attribute.type in _BODY_TYPES for attribute in node.attributes.values())


@contextmanager
def bodies_aside(model: ir.Model, *, but: Collection[ir.Node] = ()) -> Iterator[frozenset[ir.Node]]:
    """Take bodies and functions out of the model for a while, so that no pass rewrites them.

    What bodies read from the main graph still counts as read, and follows when it is replaced.

    Args:
        model: The model.
        but: Nodes that keep their bodies.

    Yields:
        The nodes that lost their bodies meanwhile.
    """
    functions = dict(model.functions)
    held = [
        (node, dict(node.attributes)) for node in model.graph if has_body(node) and node not in but
    ]
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


@contextmanager
def body_shapes_kept(model: ir.Model) -> Iterator[None]:
    """Forget afterwards what became known meanwhile about values inside bodies."""
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
