"""Model validation: by ONNX's own checker and shape inference, in a forked copy of the process.

First, this module checks for cases that native code crashes on, reports poorly or does not check.
"""

from __future__ import annotations

import faulthandler
import math
import os
import select
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NoReturn

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph._protobuf import Contents, contents, copy_fields, nodes_within, stored_size
from qdqtune.records._errors import ModelError
from qdqtune.resources import current_limits, end_with_parent, private_bytes, set_memory_limit

_LIMIT_S = 120.0
_ROOM_BYTES = 1 << 30
_DONE = b"."

# Tensors up to this size may be shapes and axes, whose values the checks need.
_SMALL_BYTES = 1024
_MODEL_FIELDS = ("ir_version", "domain", "opset_import", "metadata_props", "functions")
_GRAPH_FIELDS = ("name", "node", "input", "output", "value_info")
_PLACEHOLDER = "qdqtune: this shape is a placeholder"

# Maximum depth of function calls, here and in ONNX's own checker.
_DEEPEST_CALL = 100
# Shape inference walks through every call; this many nodes take it a few seconds.
_MOST_NODES = 1 << 17
# Beyond that, a file may expand to this many times its own number of nodes.
_TIMES_WRITTEN = 4
# The inliner's search for a free name takes as many steps as there were earlier calls.
_MOST_INLINED_CALLS = 1 << 12
_TRILLION = 10**12

Function = tuple[str, str, str]
_Calls = dict[Function, Counter[Function]]

_EXPORT_AGAIN = "Export it again, or see what `onnx.checker.check_model` says about it."
_TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")
MOST_DIMS = 32
"""Maximum rank of a tensor held in memory: NumPy before 2.0 supports no more."""
# Names are looked up, compared and printed throughout.
_LONGEST_NAME = 1 << 16


def call_guarded(action: Callable[[], bytes], room_bytes: int = _ROOM_BYTES) -> bytes | None:
    """Call a function in a forked copy of this process, which ends with it.

    Args:
        action: The function; it must not need other threads.
        room_bytes: The memory that it may take in addition to this process's, within the common
            limit.

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
    bones = onnx.ModelProto()
    copy_fields(proto, bones, _MODEL_FIELDS)
    source, graph = proto.graph, bones.graph
    copy_fields(source, graph, _GRAPH_FIELDS)
    fed = {value.name for value in source.input}
    for tensor in source.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL and _is_small(tensor):
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


def _is_small(tensor: onnx.TensorProto) -> bool:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data)) <= _SMALL_BYTES
    return stored_size(tensor) <= _SMALL_BYTES


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


def check_calls(proto: onnx.ModelProto, file: Path) -> None:
    """Make sure that the functions of a model can be traversed and expanded.

    Args:
        proto: The model.
        file: The model's file.

    Raises:
        ModelError: If functions are recursive, or expand to more nodes than can be handled.
    """
    if not proto.functions:
        return
    calls = {(f.domain, f.name, f.overload): _ops_in(f.node) for f in proto.functions}
    in_graph = _ops_in(proto.graph.node)
    times = _times_called(in_graph, calls, file)
    written = in_graph.total() + sum(ops.total() for ops in calls.values())
    total = in_graph.total() + sum(times[name] * ops.total() for name, ops in calls.items())
    if total > max(_MOST_NODES, _TIMES_WRITTEN * written):
        shown = f"{total:,}" if total < _TRILLION else "more than a trillion"
        raise ModelError(
            f"{file} has functions that call each other so often that they expand to {shown} "
            f"nodes; {written:,} are in the file.",
            "Export it without functions, or with fewer calls inside of them.",
        )


def inline_functions(model: ir.Model) -> None:
    """Inline every function call, in place.

    Args:
        model: A model that was loaded from a file, so that its functions have been checked.

    Raises:
        ModelError: If a function is called too often.
    """
    walk = ir.traversal.RecursiveGraphIterator
    calls = {
        name: Counter(node.op_identifier() for node in walk(function))
        for name, function in model.functions.items()
    }
    in_graph = Counter(node.op_identifier() for node in walk(model.graph))
    times = _times_called(in_graph, calls, Path("The model"))
    called = max(calls, key=times.__getitem__)
    if times[called] > _MOST_INLINED_CALLS:
        raise ModelError(
            f"The function {called[1]!r} is called {times[called]} times, and has to be inlined "
            "each time.",
            "Inline it first: onnx.inliner.inline_local_functions(model).",
        )
    passes.InlinePass()(model)


def _ops_in(nodes: Sequence[onnx.NodeProto]) -> Counter[Function]:
    """Count the ops, including those in bodies; some of them may be functions."""
    return Counter((node.domain, node.op_type, node.overload) for node in nodes_within(nodes))


def _times_called(in_graph: Counter[Function], calls: _Calls, file: Path) -> Counter[Function]:
    """Return how often each function is called if all calls are expanded."""
    times = Counter(in_graph)
    for name in reversed(_callees_first(calls, file)):
        for callee, count in calls[name].items():
            times[callee] += times[name] * count
    return times


def _callees_first(calls: _Calls, file: Path) -> list[Function]:
    """Return the functions, each after those that it calls.

    Raises:
        ModelError: If functions are recursive, or calls are nested too deeply.
    """
    inner = {name: [each for each in callees if each in calls] for name, callees in calls.items()}
    try:
        order = list(TopologicalSorter(inner).static_order())
    except CycleError as error:
        names = ", ".join(repr(name) for _, name, _ in sorted(set(error.args[1]))[:3])
        raise ModelError(
            f"{file} has functions that call themselves: {names}.", _EXPORT_AGAIN
        ) from None
    depth: dict[Function, int] = {}
    for name in order:
        depth[name] = 1 + max((depth[each] for each in inner[name]), default=0)
    if max(depth.values(), default=0) > _DEEPEST_CALL:
        raise ModelError(
            f"{file} has functions nested too deeply: more than {_DEEPEST_CALL} that call each "
            "other in a row.",
            "Inline them: onnx.inliner.inline_local_functions(model).",
        )
    return order


def check_model(proto: onnx.ModelProto, found: Contents, file: Path) -> None:
    """Make sure that a model is valid and supported.

    Args:
        proto: The model.
        found: Its contents.
        file: The model's file.

    Raises:
        ModelError: If it is not a valid ONNX model, or not supported.
    """
    if not found.is_text:
        raise ModelError(f"{file} has a name in it that is not UTF-8 text.", _EXPORT_AGAIN)
    if found.longest_name > _LONGEST_NAME:
        raise ModelError(
            f"{file} has a name of {found.longest_name:,} characters in it; names are read up to "
            f"{_LONGEST_NAME:,}.",
            "Give its nodes and tensors shorter names.",
        )
    if found.has_references:
        raise ModelError(
            f"{file} has attributes that stand for those of a function, but outside of any.",
            _EXPORT_AGAIN,
        )
    _check_versions(proto, file)
    _check_tensors(proto, found, file)
    _check_inputs(proto, file)
    check_calls(proto, file)
    fault = invalidity(proto, found)
    if fault:
        raise ModelError(f"{file} is not a valid ONNX model: {fault}", _EXPORT_AGAIN)


def _check_versions(proto: onnx.ModelProto, file: Path) -> None:
    if proto.ir_version > onnx.IR_VERSION:
        raise ModelError(
            f"{file} is in version {proto.ir_version} of the ONNX format; the newest one known "
            f"here is {onnx.IR_VERSION}.",
            "Update the onnx package, or export with an older one.",
        )
    versions: dict[str, int] = {}
    for opset in proto.opset_import:
        # Two spellings of the default domain; the empty one is the usual one.
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
        if versions.setdefault(opset.domain, opset.version) != opset.version:
            raise ModelError(
                f"{file} imports two versions of the opset {opset.domain!r}: "
                f"{versions[opset.domain]} and {opset.version}.",
                "Export it again.",
            )
    newest = onnx.defs.onnx_opset_version()
    if not 0 < versions.get("", 1) <= newest:
        raise ModelError(
            f"{file} uses version {versions['']} of the ONNX opset; known here are 1 to {newest}.",
            "Update the onnx package, or export with an older opset.",
        )


def _check_tensors(proto: onnx.ModelProto, found: Contents, file: Path) -> None:
    names: set[str] = set()
    for tensor in proto.graph.initializer:
        if not tensor.name:
            raise ModelError(f"{file} has a weight without a name.", "Export it again.")
        if tensor.name in names:
            raise ModelError(f"{file} has two weights named {tensor.name!r}.", "Export it again.")
        names.add(tensor.name)
    if found.has_sparse:
        raise ModelError(
            f"{file} has sparse weights, which qdqtune does not read.", "Export them as dense ones."
        )
    for tensor in found.tensors:
        is_external = tensor.data_location == onnx.TensorProto.EXTERNAL
        fault = _dims_fault(tensor) if is_external else _fault(tensor)
        if fault:
            raise ModelError(
                f"{file}: the constant {tensor.name!r} is broken: {fault}.", "Export it again."
            )


def _check_inputs(proto: onnx.ModelProto, file: Path) -> None:
    for value in proto.graph.input:
        dims = len(value.type.tensor_type.shape.dim)
        if dims > MOST_DIMS:
            raise ModelError(
                f"{file}: the input {value.name!r} has {dims} dims; arrays have {MOST_DIMS} at "
                "most.",
                "Reshape it: an input of fewer dims can hold the same.",
            )


def _fault(tensor: onnx.TensorProto) -> str:
    """Return why a tensor's values can't be read; empty if they can."""
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        return f"there is no element type {tensor.data_type}"
    if dtype == ir.DataType.UNDEFINED:
        return "it has no element type"
    if fault := _dims_fault(tensor):
        return fault
    elements = math.prod(tensor.dims)
    if dtype == ir.DataType.STRING:
        found, wanted = len(tensor.string_data), elements
    elif tensor.HasField("raw_data"):
        found, wanted = len(tensor.raw_data), stored_size(tensor)
    else:
        found = sum(len(getattr(tensor, field)) for field in _TYPED_FIELDS)
        is_complex = dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128)
        to_a_value = {4: 2, 2: 4}.get(dtype.bitwidth, 1)
        wanted = 2 * elements if is_complex else -(-elements // to_a_value)
    if found != wanted:
        return f"it holds {found} values or bytes where its shape needs {wanted}"
    return ""


def _dims_fault(tensor: onnx.TensorProto) -> str:
    if len(tensor.dims) > MOST_DIMS:
        return f"it has {len(tensor.dims)} dims; arrays have {MOST_DIMS} at most"
    return "it has negative dims" if min(tensor.dims, default=0) < 0 else ""
