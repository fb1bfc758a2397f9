"""How like two ops are: by kind, by the shapes of weights and results, and by constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.graph._op_classes import CONV_OPS, is_op
from qdqtune.graph._weights import values_of

_PRODUCTS = ("Gemm", "MatMul")
# Kinds of ops that stand for each other.
_LIKE = (("Clip", "Relu"), ("Add", "Sum"))
# Larger constants are compared only in part.
_MOST_COMPARED = 1 << 16


def may_be_same(node: ir.Node, own: ir.Node, *, moved: bool = False) -> bool:
    """Whether two ops may compute the same, by kind and by the shapes of weights and results."""
    if is_op(node, *_PRODUCTS) and is_op(own, *_PRODUCTS):
        return _sizes(node) == _sizes(own)
    kinds = (node.op_type, node.domain), (own.op_type, own.domain)
    if kinds[0] != kinds[1] and not any(is_op(node, *like) and is_op(own, *like) for like in _LIKE):
        return False
    if is_op(node, *CONV_OPS) and _sizes(node) != _sizes(own):
        return False
    return all(
        fit(theirs, ours, moved=moved)
        for theirs, ours in zip(node.outputs, own.outputs, strict=False)
    )


def _sizes(node: ir.Node) -> list[int] | None:
    """The dims of a constant weight in any order; None if it is no constant."""
    weight = node.inputs[1]
    constant = weight.const_value if weight is not None else None
    return None if constant is None else sorted(constant.shape.numpy())


def fit(one: ir.Value, other: ir.Value, *, moved: bool = False) -> bool:
    """Whether two values can be the same, as far as their shapes are known.

    Args:
        one: A value.
        other: Another.
        moved: Whether the order of values, and with it the shape, doesn't matter.
    """
    shapes = [[dim if isinstance(dim, int) else None for dim in value.shape]
              for value in (one, other) if value.shape is not None]  # fmt: skip
    if len(shapes) < 2 or (moved and any(None in shape for shape in shapes)):
        return True
    if moved:
        return len({math.prod(dim or 0 for dim in shape) for shape in shapes}) == 1
    return len(shapes[0]) == len(shapes[1]) and all(
        a == b or a is None or b is None for a, b in zip(*shapes, strict=True)
    )


def likeness(node: ir.Node, own: ir.Node) -> float:
    """How like the constants and attributes of two ops are, from 0 to 1 for equal ones."""
    found = [_constants_alike(theirs, ours) for theirs, ours in constant_pairs(node, own)]
    if node.op_type == own.op_type:
        theirs, ours = ({name: repr(each.value) for name, each in one.attributes.items()}
                        for one in (node, own))  # fmt: skip
        found.append(1.0 if theirs == ours else 0.9)
    return min(found, default=1.0)


def constant_pairs(node: ir.Node, own: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """The constants that two ops read in the same places."""
    theirs, ours = ([v for v in one.inputs if v is not None and v.const_value is not None]
                    for one in (node, own))  # fmt: skip
    return list(zip(theirs, ours, strict=False))


def _constants_alike(one: ir.Value, other: ir.Value) -> float:
    """The cosine of two constants, at least 0; of integers, whether they are equal."""
    theirs, ours = (values_of(each.const_value) for each in (one, other) if each.const_value)
    if theirs.size != ours.size:
        return 0.0
    if theirs.dtype.kind in "biu" or ours.dtype.kind in "biu":
        return float(np.array_equal(theirs.reshape(-1), ours.reshape(-1)))
    forms = [theirs] if theirs.ndim != 2 else [theirs, theirs.T]
    return max(_cosine(form, ours) for form in forms)


def _cosine(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    first, second = (each.reshape(-1)[:_MOST_COMPARED].astype(np.float32) for each in (one, other))
    size = float(np.linalg.norm(first) * np.linalg.norm(second))
    return max(0.0, float(first @ second) / size) if size else float(np.array_equal(first, second))
