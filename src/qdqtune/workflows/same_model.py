"""Whether a quantized file is a form of a model: by the ops that have weights.

Quantizers fold, fuse, add and rename nodes, and leave activations out, but they keep every Conv,
Gemm and MatMul with the shape of its weights.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import DEQUANTIZE, WEIGHTED_OPS, is_op
from qdqtune.records.errors import UsageError
from qdqtune.records.placement import Placement

# One in twenty may be lost to folding or be written in another way.
_MOST_DIFFERING = 0.05
_PRODUCTS = ("Gemm", "MatMul")
# Quantizers let the saturation of a Q stand for these.
_LEFT_OUT = ("Clip", "Relu")

_Kind = tuple[str, tuple[int, ...]]


def check_same_model(model: ir.Model, other: ir.Model, path: Path) -> None:
    """Make sure that another model has the weighted ops of a model.

    Args:
        model: The model.
        other: What is said to be a quantized form of it, without its Q/DQ.
        path: The file of that.

    Raises:
        UsageError: If it is one of another model.
    """
    own, others = _weighted_ops(model), _weighted_ops(other)
    missing, added = own - others, others - own
    most = max(own.total(), others.total())
    differing = max(missing.total(), added.total())
    if differing <= math.floor(_MOST_DIFFERING * most):
        return
    parts = [
        f"only {where} has {_listed(ops)}"
        for where, ops in ((f"{path}", added), ("the model", missing))
        if ops
    ]
    raise UsageError(
        f"{path} is a quantized form of another model: of up to {most} ops with weights, "
        f"{most - differing} are in both; {', and '.join(parts)}.",
        "Give --qdq_baseline a file that was quantized from this model, or leave it out.",
    )


def activations_in(
    model: ir.Model, other: ir.Model, placement: Placement
) -> tuple[int, frozenset[str]]:
    """Which activations of a model are quantized in a form of it that somebody made.

    Args:
        model: The model.
        other: That form, without its Q/DQ.
        placement: Where it had them.

    Returns:
        How many activations are quantized there, and the names of those that the model has.
    """
    index, others = GraphIndex(model), GraphIndex(other)
    quantized = [tensor for tensor in placement.tensors if not others.is_constant(tensor)]
    found = set()
    for tensor in quantized:
        producer = others.value[tensor].producer()
        before = producer.inputs[0] if is_op(producer, *_LEFT_OUT) and producer else None
        # The activation was left out, and what is before it may have got the name of its result.
        names = (tensor, before.name if before is not None else None)
        found.add(next((name for name in names if name in index.value), None))
    return len(quantized), frozenset(name for name in found if name)


def _weighted_ops(model: ir.Model) -> Counter[_Kind]:
    """How many ops there are of each kind and shape of weights.

    Quantizers turn a Gemm into a MatMul and an Add, or the other way round, and transpose weights.
    """
    found: Counter[_Kind] = Counter()
    for node in model.graph:
        if not is_op(node, *WEIGHTED_OPS):
            continue
        shapes = (_constant_shape(value) for value in reversed(node.inputs[:2]))
        shape = next((shape for shape in shapes if shape is not None), None)
        if shape is None:
            continue
        if node.op_type in _PRODUCTS:
            found["MatMul", tuple(sorted(shape))] += 1
        else:
            found[node.op_type, shape] += 1
    return found


def _constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a constant, also of one behind a DequantizeLinear that is still there."""
    producer = value.producer() if value is not None else None
    if is_op(producer, DEQUANTIZE):
        assert producer is not None
        value = producer.inputs[0]
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tuple(tensor.shape.numpy())


def _listed(ops: Counter[_Kind]) -> str:
    """The number of ops, and one of the most frequent."""
    ((op_type, shape), _) = max(ops.items(), key=lambda item: (item[1], item[0]))
    weights = "x".join(map(str, shape))
    more = ops.total() - 1
    return f"a {op_type} with weights {weights}" + (f" and {more} more" if more else "")
