"""ONNX's own checker and shape inference, in a forked copy of the process that may crash."""

from __future__ import annotations

import faulthandler
import math
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

import onnx
import onnx_ir as ir

from qdqtune.graph._protobuf import Contents, contents
from qdqtune.resources._limits import current_limits, private_bytes, set_memory_limit
from qdqtune.resources._parent_death import end_with_parent

_LIMIT_S = 120.0
_ROOM_BYTES = 1 << 30
_DONE = b"."

# Tensors up to this size may be shapes and axes, whose values the checks need.
_SMALL_BYTES = 1024
_PLACEHOLDER = "qdqtune: this shape is a placeholder"


def call_guarded(action: Callable[[], bytes], room_bytes: int = _ROOM_BYTES) -> bytes | None:
    """Call a function in a forked copy of this process, which ends with it.

    Args:
        action: The function; it must not need other threads.
        room_bytes: The memory that it may take beyond this process's, within the limit of both.

    Returns:
        Its return value; None if it raised, crashed, took too much memory or did not finish in
        time.
    """
    if sys.platform != "linux":  # elsewhere a fork costs more than it saves, or does not exist
        return _tried(action)
    reading, writing = os.pipe()
    limits, parent = current_limits(), os.getpid()
    sizes = (limits.memory_bytes, private_bytes() + room_bytes)
    memory = min(size for size in sizes if size is not None)
    with warnings.catch_warnings():
        # Our threads wait for pipes; none holds a lock that the copy would need.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(action, writing, parent, memory)
    os.close(writing)
    try:
        answer = _read(reading, time.monotonic() + (limits.timeout_s or _LIMIT_S))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # it is done, late, or no longer needed
        os.waitpid(child, 0)
    return answer[:-1] if answer.endswith(_DONE) else None


def _answer(action: Callable[[], bytes], writing: int, parent: int, memory: int) -> NoReturn:
    """Run the action in the copy and exit."""
    try:
        end_with_parent(parent)
        set_memory_limit(memory)
        faulthandler.disable()  # its crash dump is not wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        answer = _tried(action)
        if answer is not None:
            with open(writing, "wb") as pipe:
                pipe.write(answer + _DONE)
    finally:
        os._exit(0)


def _tried(action: Callable[[], bytes]) -> bytes | None:
    try:
        return action()
    except Exception:  # anything that native code raises on an untrusted model
        return None


def _read(pipe: int, deadline: float) -> bytes:
    chunks = []
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    while poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
        chunk = os.read(pipe, 1 << 20)
        if not chunk:
            break
        chunks.append(chunk)
    return b"".join(chunks)


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
    for tensor in contents(bones).external if found.external else ():
        # The checker would look for the file in the current working directory.
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
