"""Nodes that make onnxscript's folding grow without bound.

onnxscript follows shapes symbolically and splits sequences. A Concat or an Add of a symbolic shape
with itself doubles its representation; a sequence of all rows of a tensor becomes a node with as
many outputs.
"""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.op_classes import is_op

# Limits on the characters of symbolic dims behind one value, and on the outputs of one node.
_MOST_SYMBOLS = 1 << 16
_MOST_PARTS = 1 << 12
# onnxscript does not treat larger constants as shapes.
_LARGEST_SHAPE = 10

_JOINING = ("Add", "Concat")
_KEEPING = ("Abs", "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def runaway_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes that must be hidden from onnxscript, including those in bodies."""
    symbols: dict[ir.Value, int] = {}
    found = []
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if is_op(node, "SplitToSequence") and _parts(node) > _MOST_PARTS:
            found.append(node)
            continue
        count = _symbols(node, symbols)
        if count > _MOST_SYMBOLS:
            found.append(node)  # what is hidden adds nothing later
        elif count:
            symbols[node.outputs[0]] = count
    return found


def _symbols(node: ir.Node, known: dict[ir.Value, int]) -> int:
    """Return the size of a node's result as a symbolic shape, if it is one."""
    if is_op(node, "Shape"):
        value = node.inputs[0] if node.inputs else None
        shape = value.shape if value is not None and value.shape is not None else ()
        return sum(len(str(dim)) for dim in shape)
    counts = [_symbols_of(value, known) for value in node.inputs]
    if is_op(node, *_JOINING):
        return sum(counts)
    if is_op(node, *_KEEPING) and counts:
        return counts[0]
    if is_op(node, "Gather") and len(counts) == 2 and counts[0] and node.inputs[1] is not None:
        indices = node.inputs[1].const_value
        return counts[0] * indices.size if indices is not None else 0
    return 0


def _symbols_of(value: ir.Value | None, known: dict[ir.Value, int]) -> int:
    if value is None:
        return 0
    constant = value.const_value
    if constant is not None:
        return constant.size if constant.size <= _LARGEST_SHAPE else 0
    return known.get(value, 0)


def _parts(node: ir.Node) -> int:
    """Return the number of tensors in a sequence, as far as it is known."""
    data, split = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if data is None or split is None:
        return 0
    if split.shape is not None and len(split.shape) == 1:
        count = split.shape[0]
        return count if isinstance(count, int) else 0
    if split.const_value is None or split.const_value.size != 1:
        return 0
    dims = [dim for dim in data.shape or () if isinstance(dim, int)]
    return max(dims, default=0) // max(1, int(split.const_value.numpy().item()))
