"""Float weights and activations that a Q/DQ model only implies.

Weights behind a Transpose or Cast, activations that a saturating Q stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from qdqtune.graph._op_classes import is_op
from qdqtune.qdq._existing_scales import ReadEncoding


def propagates_weight(user: ir.Node, graph: ir.Graph) -> bool:
    """Whether a reader of a constant only hands it on in another form."""
    if user.graph is not graph or not is_op(user, "Transpose", "Cast", "Identity"):
        return False
    return bool(user.outputs[0].uses()) and not user.outputs[0].is_graph_output()


def propagate(
    constant: ir.TensorProtocol, encoding: ReadEncoding, user: ir.Node
) -> tuple[ir.TensorProtocol, ReadEncoding]:
    """What a carrier makes of a constant and of its encoding; values are computed when read."""
    if is_op(user, "Transpose"):
        rank = len(constant.shape)
        given = user.attributes.get("perm")
        order = list(given.as_ints()) if given is not None else list(range(rank))[::-1]
        shape = ir.Shape([constant.shape.numpy()[axis] for axis in order])
        axis = order.index(encoding.axis % rank) if encoding.scale.size > 1 else encoding.axis
        moved = ir.LazyTensor(
            lambda: ir.Tensor(constant.numpy().transpose(order), constant.dtype),
            dtype=constant.dtype,
            shape=shape,
            name=user.outputs[0].name,
        )
        return moved, replace(encoding, axis=axis)
    to = user.attributes.get("to")
    dtype = ir.DataType(to.as_int()) if to is not None else constant.dtype
    cast = ir.LazyTensor(
        lambda: ir.Tensor(constant.numpy().astype(dtype.numpy()), dtype),
        dtype=dtype,
        shape=ir.Shape(constant.shape.numpy()),
        name=user.outputs[0].name,
    )
    return cast, encoding


# Ops whose results have both signs, and behind which an activation can have stood.
_SIGNED_OPS = ("Add", "BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Sub")
_BOUNDS = {ir.DataType.UINT8: (0, 255), ir.DataType.INT8: (-128, 127)}
# The one upper bound that is common enough to be told from a calibrated maximum.
_SIX = 6.0


def stands_for_activation(value: ir.Value, encoding: ReadEncoding) -> bool:
    """Whether a Q cuts off negative values that its input can have."""
    bounds = _BOUNDS.get(encoding.dtype or ir.DataType.FLOAT)
    if bounds is None or not is_op(value.producer(), *_SIGNED_OPS):
        return False
    point = np.zeros(1) if encoding.zero_point is None else encoding.zero_point
    return bool((point == bounds[0]).all())


def put_back(value: ir.Value, encoding: ReadEncoding, free_name: Callable[[str], str]) -> ir.Value:
    """Insert the activation behind a value: a Clip at six if that is where the Q saturates.

    Args:
        value: What the Q reads.
        encoding: The Q's.
        free_name: Makes a name that no value of the model has.
    """
    producer, scale = value.producer(), float(encoding.scale.reshape(-1)[0])
    assert producer is not None
    graph = producer.graph
    assert graph is not None
    low, high = _BOUNDS[encoding.dtype or ir.DataType.UINT8]
    inputs = [value]
    if abs(scale * (high - low) - _SIX) < 1e-3 * _SIX:
        for bound, number in (("low", 0.0), ("high", _SIX)):
            name = free_name(f"{value.name}_clip_{bound}")
            tensor = ir.Tensor(np.array(number, encoding.scale.dtype), name=name)
            inputs.append(ir.val(name, const_value=tensor))
            graph.register_initializer(inputs[-1])
    op_type = "Clip" if len(inputs) > 1 else "Relu"
    node = ir.node(op_type, inputs, name=f"{producer.name}_{op_type}")
    result = node.outputs[0]
    result.name = free_name(f"{value.name}_{op_type.lower()}")
    result.type, result.shape = value.type, value.shape
    graph.insert_after(producer, node)
    return result
