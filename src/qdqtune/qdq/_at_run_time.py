"""Which ops can have their input quantized at run time, by a kernel for it or by the engine."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import input_at, is_standard
from qdqtune.qdq._dialect import Dialect


def why_not_dynamic(index: GraphIndex, dialect: Dialect, node: ir.Node) -> str:
    """Why an op can't be dynamic in this dialect; empty if it can."""
    if not is_standard(node) or node.op_type not in dialect.dynamic:
        return f"{dialect.name} does not quantize the input of {node.op_type} at run time"
    return _why_not(index, node)


def why_not_by_engine(index: GraphIndex, dialect: Dialect, node: ir.Node) -> str:
    """Why the engine doesn't quantize an op's input at run time by itself; empty if it does."""
    if not is_standard(node) or node.op_type not in dialect.dynamic_by_engine:
        return f"{dialect.name} does not quantize the input of {node.op_type} at run time"
    return _why_not(index, node)


def _why_not(index: GraphIndex, node: ir.Node) -> str:
    """Why no engine quantizes the input of such an op at run time; empty if one may."""
    is_lstm = node.op_type == "LSTM"
    data, *weights = (input_at(node, position) for position in range(3 if is_lstm else 2))
    names = [value.name or "" for value in weights if value is not None]
    if data is None or len(names) < len(weights) or not all(map(index.is_constant, names)):
        return (
            f"its {'weights are not constants' if is_lstm else 'second operand is not a constant'}"
        )
    for name in (data.name or "", *names):
        dtype = index.dtype(name)
        if dtype != ir.DataType.FLOAT:
            kind = "untyped" if dtype is None else dtype.name.lower()
            return f"only float32 is quantized at run time, and it reads {kind} tensors"
    if index.is_constant(data.name or ""):
        return f"its {'input' if is_lstm else 'first operand'} is a constant"
    for name in names:
        if not index.is_finite(name):
            return f"the constant {name!r} holds infinite or undefined values"
    ranks = [len(index.shape(name) or ()) for name in names]
    return _why_not_lstm(node, ranks) if is_lstm else _why_not_product(node, ranks[0])


def _why_not_product(node: ir.Node, rank: int) -> str:
    attributes = node.attributes
    if rank < 2:
        return "its weight is a vector"
    if attributes.get_int("transA", 0):
        return "its first operand is transposed"
    if attributes.get_float("alpha", 1.0) != 1.0 or attributes.get_float("beta", 1.0) != 1.0:
        return "it scales its operands"
    return ""


def _why_not_lstm(node: ir.Node, ranks: list[int]) -> str:
    if ranks != [3, 3]:
        return "its weights are not of rank 3"
    # Peepholes, a clip, a coupled forget gate and other activations are no obstacle: the kernel is
    # that of floats with other products.
    if node.attributes.get_int("layout", 0):
        return "no kernel takes the batch first (layout 1)"
    return ""
