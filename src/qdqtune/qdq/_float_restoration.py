"""Float weights and activations that a Q/DQ model only implies.

Weights may lie behind a Transpose or Cast; a saturating Q may stand for an activation.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qdqtune.graph._editing import add_constant
from qdqtune.graph._index import FreeNames
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._existing_scales import ReadEncoding

# Ops whose results have both signs, and behind which an activation can have stood.
_SIGNED_OPS = WEIGHTED_OPS | {"Add", "BatchNormalization", "Mul", "Sub"}
# The one upper bound that is common enough to be told from a calibrated maximum.
_SIX = 6.0


def propagates_weight(user: ir.Node, graph: ir.Graph) -> bool:
    """Whether a reader of a constant only hands it on in another form."""
    if user.graph is not graph or not is_op(user, "Transpose", "Cast", "Identity"):
        return False
    return bool(user.outputs[0].uses()) and not user.outputs[0].is_graph_output()


def propagate(
    constant: ir.TensorProtocol, encoding: ReadEncoding, user: ir.Node
) -> tuple[ir.TensorProtocol, ReadEncoding]:
    """What a carrier makes of a constant and of its encoding; values are computed when read."""
    dims, dtype = list(constant.shape.numpy()), constant.dtype
    if is_op(user, "Transpose"):
        order = list(user.attributes.get_ints("perm", range(len(dims))[::-1]))
        if encoding.scale.size > 1:
            encoding = replace(encoding, axis=order.index(encoding.axis % len(dims)))
        dims = [dims[axis] for axis in order]
    else:
        order = list(range(len(dims)))
        dtype = ir.DataType(user.attributes.get_int("to", dtype))

    def make() -> ir.TensorProtocol:
        return ir.Tensor(constant.numpy().transpose(order).astype(dtype.numpy(), copy=False), dtype)

    return ir.LazyTensor(make, dtype, ir.Shape(dims), name=user.outputs[0].name), encoding


def stands_for_activation(value: ir.Value, encoding: ReadEncoding) -> bool:
    """Whether a Q cuts off negative values that its input can have."""
    dtype = encoding.dtype
    if dtype not in (ir.DataType.UINT8, ir.DataType.INT8):
        return False
    if dtype is None or not is_op(value.producer(), *_SIGNED_OPS):
        return False
    point = np.zeros(1) if encoding.zero_point is None else encoding.zero_point
    return bool((point == dtype.min).all())


def put_back(value: ir.Value, encoding: ReadEncoding, names: FreeNames) -> ir.Value:
    """Insert the activation behind a value: a Clip at six if that is where the Q saturates.

    Args:
        value: What the Q reads.
        encoding: The Q's.
        names: Generates names for new values.
    """
    producer, scale = value.producer(), float(encoding.scale.reshape(-1)[0])
    assert producer is not None
    graph = producer.graph
    assert isinstance(graph, ir.Graph)
    inputs = [value]
    if abs(scale * 255 - _SIX) < 1e-3 * _SIX:
        for bound, number in (("low", 0.0), ("high", _SIX)):
            name = names.new(f"{value.name}_clip_{bound}")
            tensor = ir.Tensor(np.array(number, encoding.scale.dtype), name=name)
            inputs.append(add_constant(graph, name, tensor))
    op_type = "Clip" if len(inputs) > 1 else "Relu"
    node = ir.node(op_type, inputs, name=f"{producer.name}_{op_type}")
    result = node.outputs[0]
    result.name = names.new(f"{value.name}_{op_type.lower()}")
    result.type, result.shape = value.type, value.shape
    graph.insert_after(producer, node)
    return result
