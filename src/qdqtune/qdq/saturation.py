"""Activations that a saturating Q stands for.

ONNX Runtime's quantizer takes a Relu or a Clip out of the model where the Q behind it cuts off the
same values. A float model without them would be another function.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from qdqtune.graph.op_classes import is_op
from qdqtune.qdq.read_result import ReadEncoding

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
