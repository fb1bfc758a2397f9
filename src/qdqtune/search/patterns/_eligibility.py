"""Which inputs and outputs can benefit from a Q/DQ pair on any engine, and why others can't."""

from __future__ import annotations

import functools
import math

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, WEIGHTED_OPS, is_op, is_standard
from qdqtune.qdq.dialects import dialects

#: Smaller tensors cost more to quantize than they can save.
LEAST_ELEMENTS = 8


@functools.cache
def _fused_activations() -> frozenset[str]:
    return frozenset[str]().union(*(each.fused_activations for each in dialects().values()))


@functools.cache
def _kernel_inputs() -> dict[str, frozenset[int] | None]:
    """By op type: the inputs that some engine's integer kernel reads quantized; None for all."""
    found: dict[str, frozenset[int] | None] = {}
    for dialect in dialects().values():
        for op_type, rule in dialect.rules.items():
            known = found.get(op_type, frozenset())
            both = None if known is None or rule.inputs is None else known.union(rule.inputs)
            found[op_type] = both
    return found


# Ops that read a table of weights, which may be worth storing quantized.
_TABLE_OPS = ("Gather",)


def activation_input(index: GraphIndex, node: ir.Node) -> int:
    """Return the input of a weighted op that carries the point; the other operand is included."""
    first = node.inputs[0] if node.inputs else None
    return 1 if first is not None and index.is_constant(first.name or "") else 0


def why_not(index: GraphIndex, node_position: int, input_position: int) -> str:
    """Return why a node's input is not an insertion point; empty if it is one.

    Args:
        index: The graph.
        node_position: Position of the node in the index.
        input_position: Position of the input, as in the model.
    """
    if not 0 <= node_position < len(index.nodes):
        return f"there is no node {node_position}"
    node = index.nodes[node_position]
    value = node.inputs[input_position] if 0 <= input_position < len(node.inputs) else None
    if value is None or not value.name:
        return f"{node.op_type} has no input {input_position} here"
    if not is_standard(node) or node.op_type not in _kernel_inputs():
        return f"no engine has an integer kernel for {node.op_type}"
    weighted = node.op_type in WEIGHTED_OPS
    if weighted and input_position == 2:
        return "a bias becomes an integer together with the op"
    positions = _kernel_inputs()[node.op_type]
    if positions is not None and input_position not in positions:
        return f"{node.op_type} reads its input {input_position} as it is"
    if weighted and input_position != activation_input(index, node):
        return f"it comes along with input {activation_input(index, node)}"
    if index.is_constant(value.name) and not (is_op(node, *_TABLE_OPS) and input_position == 0):
        return "a constant doesn't pay on its own"
    return _why_not_tensor(index, value)


def why_not_output(index: GraphIndex, node_position: int, output_position: int) -> str:
    """Return why a node's output is not an insertion point; empty if it is one."""
    if not 0 <= node_position < len(index.nodes):
        return f"there is no node {node_position}"
    node = index.nodes[node_position]
    value = node.outputs[output_position] if 0 <= output_position < len(node.outputs) else None
    if value is None or not value.name:
        return f"{node.op_type} has no output {output_position} here"
    reason = _why_not_tensor(index, value)
    if reason:
        return reason
    readers = [edge for edge in index.readers(value.name) if edge.node]
    if not readers:
        return "no node reads it"
    has_kernel = is_standard(node) and node.op_type in _kernel_inputs()
    if has_kernel and all(is_op(index.node[e.node], *_fused_activations()) for e in readers):
        return "it would part the op from the activation that fuses into it"
    if not has_kernel and all(_reason(index, e.node, e.position) for e in readers):
        return "neither its maker nor a reader has an integer kernel"
    return ""


def _reason(index: GraphIndex, node: str, position: int) -> str:
    """Like `why_not`, but accepts the other operand of a weighted op, which is read as well."""
    if is_op(index.node[node], *WEIGHTED_OPS) and position < 2:
        return ""
    return why_not(index, index.position[node], position)


def _why_not_tensor(index: GraphIndex, value: ir.Value) -> str:
    name = value.name or ""
    if not index.is_float(name):
        dtype = index.dtype(name)
        kind = dtype.name.lower() if dtype is not None else "of unknown type"
        return f"the tensor is {kind}, not float"
    if is_op(value.producer(), DEQUANTIZE):
        return "it is quantized already"
    if is_op(value.producer(), "Constant", "ConstantOfShape"):
        return "a constant doesn't pay on its own"
    shape = index.shape(name)
    if shape is not None and None not in shape:
        elements = math.prod(dim for dim in shape if dim is not None)
        if elements < LEAST_ELEMENTS:
            return f"it has {elements} elements only"
    return ""
