"""Following tensors through ops that only hand them on."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import is_op

_DEPTH = 10


def readers_through(index: GraphIndex, tensor: str, passing: Collection[str]) -> list[ir.Node]:
    """Who reads a tensor, or what these ops make of it, at most ten of them in a row.

    Only what goes in as data is followed, not shapes and axes.
    """
    found: dict[str, ir.Node] = {}
    layer, seen = [tensor], {tensor}
    for _ in range(_DEPTH + 1):
        behind = []
        for name in layer:
            for edge in index.readers(name):
                node = index.node.get(edge.node)
                if node is None:
                    continue
                if not is_op(node, *passing):
                    found.setdefault(edge.node, node)
                elif edge.position == 0:
                    behind += [output.name for output in node.outputs if output.name]
        layer = [name for name in dict.fromkeys(behind) if name not in seen]
        seen.update(layer)
    return list(found.values())


def source_through(
    index: GraphIndex, tensor: str, passing: Collection[str], depth: int = _DEPTH
) -> ir.Node | None:
    """Who made a tensor, before these ops handed it on: along the data only.

    Returns:
        The first op that is none of these; None for inputs, constants and longer ways.
    """
    for _ in range(depth + 1):
        node = index.value[tensor].producer()
        if node is None or not is_op(node, *passing):
            return node
        if not node.inputs or node.inputs[0] is None:
            return None
        tensor = index.reads(node)[0]
    return None


def sources_through(index: GraphIndex, node: ir.Node, passing: Collection[str]) -> list[ir.Node]:
    """Who made the floats that an op reads, before these ops worked on them, at most ten in a row.

    All operands are followed: scores are the first of an Add and the second of a Where.
    """
    found: dict[str, ir.Node] = {}
    layer, seen = [node], {node.name}
    for _ in range(_DEPTH + 1):
        before = [
            producer
            for each in layer
            for name in index.reads(each)
            if index.is_float(name) and (producer := index.value[name].producer()) is not None
        ]
        layer = []
        for producer in before:
            if producer.name in seen:
                continue
            seen.add(producer.name)
            if is_op(producer, *passing):
                layer.append(producer)
            else:
                found[producer.name or ""] = producer
    return list(found.values())
