"""Results that are moved and taken apart, such as q, k and v of one projection."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import COPY_OPS, is_op

_SPLIT_OPS = ("Gather", "Slice", "Split")


def parted_result(index: GraphIndex, node: ir.Node) -> list[str]:
    """The op's result, its bias added, if nothing but moves lead from it to parts of it."""
    result = tensor = node.outputs[0].name or ""
    moves = 0
    while True:
        readers = [index.node[edge.node] for edge in index.readers(tensor) if edge.node]
        if any(is_op(reader, *_SPLIT_OPS) for reader in readers):
            return [result] if moves or any(map(_is_moved, readers)) else []
        if len(readers) != 1:
            return []
        reader = readers[0]
        if not moves and is_op(reader, "Add") and _adds_constant(index, reader):
            result = reader.outputs[0].name or ""
        elif is_op(reader, *COPY_OPS):
            moves += 1
        else:
            return []
        tensor = reader.outputs[0].name or ""


def _is_moved(node: ir.Node) -> bool:
    """Whether something moves a part before it is used."""
    users = (user for output in node.outputs for user, _ in output.uses())
    return is_op(node, *_SPLIT_OPS) and any(is_op(user, *COPY_OPS) for user in users)


def _adds_constant(index: GraphIndex, node: ir.Node) -> bool:
    return any(value is not None and index.is_constant(value.name or "") for value in node.inputs)
