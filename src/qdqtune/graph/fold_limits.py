"""What may be computed ahead of time: a few bytes of a model can stand for terabytes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op

# In elements. What only exists to save space is written out up to the first size, and up to the
# second if it is a weight (the largest layer of VGG has 103 million); all of it up to the third.
_MOST_ELEMENTS = 1 << 16
_MOST_WEIGHT_ELEMENTS = 1 << 27
_MOST_GROWTH = 1 << 28
_MOST_MULTIPLICATIONS = 1 << 28
_MOST_DIMS = 64

# Ops whose result has as many elements as their inputs, or fewer.
_NEVER_GROW = frozenset(
    {
        "Abs", "ArgMax", "ArgMin", "Cast", "CastLike", "Ceil", "Concat", "Cos", "CumSum", "Erf",
        "Exp", "Flatten", "Floor", "GatherElements", "Identity", "Log", "Neg", "NonZero", "Not",
        "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
        "ReduceSumSquare", "Relu", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
        "Sigmoid", "Sign", "Sin", "Size", "Slice", "Sqrt", "Squeeze", "Tanh", "Transpose", "Trilu",
        "Unsqueeze",
    }
)  # fmt: skip
_BROADCASTING = frozenset(
    {
        "Add", "And", "Clip", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
        "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
    }
)  # fmt: skip
_MOVES = ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")


class FoldLimits:
    """Decides which standard ops on constants are computed, and keeps account of what it costs."""

    def __init__(self) -> None:
        self._growth = 0

    def allow(self, node: ir.Node) -> bool:
        """Whether an op is worth computing, and can't get out of hand."""
        if node.op_type in _NEVER_GROW:
            return True
        constants = [
            value.const_value
            for value in node.inputs
            if value is not None and value.const_value is not None
        ]
        elements = _most_elements(node.op_type, constants)
        if elements is None:
            return False
        known = sum(constant.size for constant in constants)
        limit = _MOST_WEIGHT_ELEMENTS if _becomes_weight(node.outputs[0]) else _MOST_ELEMENTS
        growth = max(0, elements - known)
        if growth > limit or self._growth + growth > _MOST_GROWTH:
            return False
        self._growth += growth
        return True


def _most_elements(op_type: str, constants: Sequence[ir.TensorProtocol]) -> int | None:
    """An upper bound for the size of a result; None if there is none, or no such op is folded."""
    shapes = [tuple(constant.shape.numpy()) for constant in constants]
    sizes = [math.prod(shape) for shape in shapes]
    if op_type in _BROADCASTING:
        try:
            return math.prod(np.broadcast_shapes(*shapes))
        except ValueError:
            return None
    if op_type == "ConstantOfShape" and len(constants) == 1:
        return _product(constants[0])
    if op_type == "Range" and len(constants) == 3:
        return _steps(constants)
    if len(constants) != 2:
        return None
    if op_type in ("Gather", "GatherND"):
        return sizes[0] * sizes[1]
    if op_type in ("Expand", "Tile"):
        factor = _product(constants[1])
        return None if factor is None else sizes[0] * factor
    if op_type == "MatMul" and all(shapes) and all(sizes):
        rows, columns = sizes[0] // shapes[0][-1], sizes[1] // shapes[1][-2:][0]
        work = rows * columns * shapes[0][-1]
        return rows * columns if work <= _MOST_MULTIPLICATIONS else None
    return None


def _product(dims: ir.TensorProtocol) -> int | None:
    numbers = _numbers(dims)
    return None if numbers is None or min(numbers, default=0) < 0 else math.prod(map(int, numbers))


def _steps(ends: Sequence[ir.TensorProtocol]) -> int | None:
    numbers = [_numbers(end) for end in ends]
    if any(number is None or len(number) != 1 for number in numbers):
        return None
    start, limit, delta = (number[0] for number in numbers if number is not None)
    steps = (limit - start) / delta if delta else math.inf
    return math.ceil(max(steps, 0.0)) if math.isfinite(steps) else None


def _numbers(tensor: ir.TensorProtocol) -> list[float] | None:
    """A few plain numbers; None for anything else."""
    if tensor.size > _MOST_DIMS or tensor.dtype == ir.DataType.STRING:
        return None
    values = tensor.numpy()
    return values.reshape(-1).tolist() if values.dtype.kind in "iuf" else None


def _becomes_weight(value: ir.Value) -> bool:
    """Whether a weighted op reads the value as its weight, at most moved before."""
    pending, seen = [value], {value}
    while pending:
        for user, position in pending.pop().uses():
            if position == 1 and is_op(user, *WEIGHTED_OPS):
                return True
            if position == 0 and is_op(user, *_MOVES) and user.outputs[0] not in seen:
                seen.add(user.outputs[0])
                pending.append(user.outputs[0])
    return False
