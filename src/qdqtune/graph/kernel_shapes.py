"""Writes the `kernel_shape` of Convs where an exporter left it out."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph.op_classes import is_op


def write_kernel_shapes(model: ir.Model) -> bool:
    """Give every Conv its `kernel_shape`, in place.

    The attribute is optional, but TensorRT 8.6 can't infer it from a weight that comes out of a
    DequantizeLinear, and refuses the model.

    Returns:
        Whether anything changed.
    """
    modified = False
    for node in model.graph:
        if not is_op(node, "Conv", "ConvTranspose") or "kernel_shape" in node.attributes:
            continue
        weight = node.inputs[1]
        tensor = weight.const_value if weight is not None else None
        if tensor is not None:
            window = tensor.shape.numpy()[2:]
            node.attributes["kernel_shape"] = ir.AttrInt64s("kernel_shape", window)
            modified = True
    return modified
