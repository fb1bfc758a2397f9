"""Quantized weights that reach their op through a Transpose or a Cast.

A linear layer with fake quantization is exported as weight, Q, DQ, Transpose, MatMul. The scales
belong to what the MatMul reads: the transposed weight, along the transposed axis.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from qdqtune.graph.op_classes import is_op
from qdqtune.qdq.read_result import ReadEncoding


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
