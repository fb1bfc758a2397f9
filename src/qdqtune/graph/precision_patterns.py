"""Graph patterns that reveal the magnitude of a node's values."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from qdqtune.graph.constants import Magnitudes, constant_behind
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.graph.precision_types import dtype_of

# Ops that may lie between a sum of squares, or an epsilon, and the division by it.
_TOWARDS_DIVISION = ("Abs", "Clip", "Expand", "Log", "Max", "Pow", "Reciprocal", "Sqrt")
# Ops for which a number beyond the range means "the largest value": masks and bounds.
_MASKING = (
    "Add", "Clip", "Concat", "Equal", "Expand", "Gather", "Greater", "GreaterOrEqual", "Identity",
    "Less", "LessOrEqual", "Max", "Min", "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice",
    "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze", "Where",
)  # fmt: skip
_INTEGERS = frozenset(
    {ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32, ir.DataType.INT64}
    | {ir.DataType.UINT8, ir.DataType.UINT16, ir.DataType.UINT32, ir.DataType.UINT64}
)


def behind_casts(value: ir.Value) -> ir.Value:
    """Return the value before one or more Casts."""
    producer = value.producer()
    while producer is not None and is_op(producer, "Cast") and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def is_square(node: ir.Node) -> bool:
    """Whether the node raises its input to a power greater than 1."""
    if is_op(node, "Mul"):
        return node.inputs[0] is node.inputs[1]
    if not is_op(node, "Pow"):
        return False
    exponent = constant_behind(node.inputs[1])
    return exponent is None or bool((exponent.numpy() > 1).all())


def readers(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the readers of the node's results, looking through Casts."""
    pending = list(node.outputs)
    while pending:
        for user, _ in pending.pop().uses():
            if is_op(user, "Cast"):
                pending += user.outputs
            else:
                yield user


def towards_division(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the ops from a node to the division or product that consumes its result."""
    pending, seen = [node], {node}
    while pending:
        for reader in readers(pending.pop()):
            if reader in seen:
                continue
            seen.add(reader)
            by_constant = any(constant_behind(value) is not None for value in reader.inputs)
            if is_op(reader, *_TOWARDS_DIVISION) or (
                by_constant and is_op(reader, "Add", "Sub", "Mul", "Div")
            ):
                yield reader
                pending.append(reader)
            elif is_op(reader, "Mul", "Div"):
                yield reader


def is_masking(node: ir.Node, numbers: Magnitudes) -> bool:
    """Whether a constant beyond the range can be saturated because it is a mask or a bound.

    A product may turn a mask of zeros and ones into zeros and "minus infinity".
    """
    if is_op(node, "Mul"):
        return math.isclose(numbers.most, -numbers.lowest)
    return is_op(node, *_MASKING)


def needs_digits(node: ir.Node, position: int, numbers: Magnitudes) -> bool:
    """Whether losing the digits of a small constant matters: not if it is added to more."""
    if is_op(node, *WEIGHTED_OPS):
        return position < 2
    if is_op(node, "Mul", "Div"):
        return True
    return numbers.size == 1 and is_op(node, "Add", "Clip", "Max", "Min", "Pow", "Sub", "Where")


def gives_integers(node: ir.Node) -> bool:
    """Whether the node converts floats to integers."""
    return is_op(node, "Cast") and dtype_of(node.outputs[0]) in _INTEGERS
