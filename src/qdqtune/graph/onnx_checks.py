"""Checks of a model with ONNX's own checker and shape inference.

They get the model without its weights, so that the model's size doesn't matter, and never open a
file.
"""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir

from qdqtune.graph.crash_guard import call_guarded
from qdqtune.graph.proto_walk import Contents, contents

# Tensors up to this size may be shapes and axes, whose values the checks need.
_SMALL_BYTES = 1024
_PLACEHOLDER = "qdqtune: this shape is a placeholder"


def invalidity(proto: onnx.ModelProto, found: Contents) -> str:
    """Return the error that ONNX's checker finds in a model; empty if none."""
    return _checked(skeleton(proto, found))


def inconsistency(proto: onnx.ModelProto) -> str:
    """Return the error in types and shapes that the checker or inference finds; empty if none."""
    bones = skeleton(proto, contents(proto))
    fault = _checked(bones)
    if fault:
        return fault
    for value in (*bones.graph.input, *bones.graph.output):
        if value.doc_string == _PLACEHOLDER:
            value.type.tensor_type.ClearField("shape")
    answer = call_guarded(lambda: _inferred(bones).encode())
    return "ONNX's shape inference crashes on it" if answer is None else answer.decode()


def skeleton(proto: onnx.ModelProto, found: Contents) -> onnx.ModelProto:
    """Return a copy without the values of larger weights, which become inputs.

    An input or output without a shape gets one: the checker requires it, engines don't.
    """
    bones = onnx.ModelProto(ir_version=proto.ir_version, domain=proto.domain)
    bones.opset_import.extend(proto.opset_import)
    bones.metadata_props.extend(proto.metadata_props)
    bones.functions.extend(proto.functions)
    source, graph = proto.graph, bones.graph
    graph.name = source.name
    graph.node.extend(source.node)
    graph.input.extend(source.input)
    graph.output.extend(source.output)
    graph.value_info.extend(source.value_info)
    fed = {value.name for value in source.input}
    for tensor in source.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and _nbytes(tensor) <= _SMALL_BYTES:
            graph.initializer.append(tensor)
        if tensor.name not in fed:
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            graph.input.append(value)
    for value in (*graph.input, *graph.output):
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
            value.doc_string = _PLACEHOLDER
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in found.nested):
        for tensor in contents(bones).nested:
            # The checker would look for the file in the current working directory.
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.ClearField("external_data")
                tensor.ClearField("data_location")
                tensor.dims[:] = [0]
    return bones


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _checked(proto: onnx.ModelProto) -> str:
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError as error:
        return first_line(error)
    return ""


def _inferred(proto: onnx.ModelProto) -> str:
    try:
        onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        return first_line(error)
    return ""


def _nbytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    size: int = -(-math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth // 8)
    return size
