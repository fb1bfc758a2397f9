"""Model validation for cases that native code crashes on, reports poorly or does not check."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph._onnx_checks import invalidity
from qdqtune.graph._protobuf import Contents, nodes_within
from qdqtune.records._errors import ModelError

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
MOST_DIMS = 32
"""Maximum rank of a tensor held in memory: NumPy before 2.0 supports no more."""
# Names are looked up, compared and printed throughout.
_LONGEST_NAME = 1 << 16


def check_calls(proto: onnx.ModelProto, file: Path) -> None:
    """Make sure that the functions of a model can be traversed and expanded.

    Args:
        proto: The model.
        file: The model's file.

    Raises:
        ModelError: If functions are recursive, or expand to more nodes than can be handled.
    """
    names = [(each.domain, each.name, each.overload) for each in proto.functions]
    if not names:
        return
    calls: _Calls = {name: Counter() for name in names}
    written = Counter(dict.fromkeys(names, 0))
    for name, function in zip(names, proto.functions, strict=True):
        written[name] = _count(function.node, calls[name], calls)
    order = _callees_first(calls, file)
    from_graph: Counter[Function] = Counter()
    nodes = _count(proto.graph.node, from_graph, calls)
    total = nodes + _expanded(from_graph, written, calls, order)
    if total > max(_MOST_NODES, _TIMES_WRITTEN * (nodes + written.total())):
        shown = f"{total:,}" if total < _TRILLION else "more than a trillion"
        raise ModelError(
            f"{file} has functions that call each other so often that they expand to {shown} "
            f"nodes; {nodes + written.total():,} are in the file.",
            "Export it without functions, or with fewer calls inside of them.",
        )


def inline_functions(model: ir.Model) -> None:
    """Inline every function call, in place.

    Args:
        model: A model that was loaded from a file, so that its functions have been checked.

    Raises:
        ModelError: If a function is called too often.
    """
    calls: _Calls = {name: Counter() for name in model.functions}
    for name, function in model.functions.items():
        calls[name].update(n.op_identifier() for n in ir.traversal.RecursiveGraphIterator(function))
    times = Counter(
        node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(model.graph)
    )
    for name in reversed(_callees_first(calls, Path("The model"))):
        for callee, count in calls[name].items():
            times[callee] += times[name] * count
    called, count = max(((name, times[name]) for name in calls), key=lambda each: each[1])
    if count > _MOST_INLINED_CALLS:
        raise ModelError(
            f"The function {called[1]!r} is called {count} times, and has to be inlined each time.",
            "Inline it first: onnx.inliner.inline_local_functions(model).",
        )
    passes.InlinePass()(model)


def _count(
    nodes: Sequence[onnx.NodeProto], called: Counter[Function], known: Mapping[Function, object]
) -> int:
    """Count nodes, including bodies, and add up the functions that they call."""
    count = 0
    for node in nodes_within(nodes):
        count += 1
        callee = (node.domain, node.op_type, node.overload)
        if callee in known:
            called[callee] += 1
    return count


def _expanded(
    roots: Counter[Function], written: Counter[Function], calls: _Calls, order: list[Function]
) -> int:
    """Return the number of nodes that calls expand to."""
    size: dict[Function, int] = {}
    for name in order:
        size[name] = written[name] + sum(size[each] * n for each, n in calls[name].items())
    return sum(size[name] * count for name, count in roots.items())


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
            f"{file} has functions that call themselves: {names}.",
            "Export it again, or see what `onnx.checker.check_model` says about it.",
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
    """Why a tensor's values can't be read; empty if they can."""
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
        found, wanted = len(tensor.raw_data), -(-elements * dtype.bitwidth // 8)
    else:
        found, wanted = _typed_values(tensor), _typed_count(elements, dtype)
    if found != wanted:
        return f"it holds {found} values or bytes where its shape needs {wanted}"
    return ""


def _dims_fault(tensor: onnx.TensorProto) -> str:
    if len(tensor.dims) > MOST_DIMS:
        return f"it has {len(tensor.dims)} dims; arrays have {MOST_DIMS} at most"
    return "it has negative dims" if min(tensor.dims, default=0) < 0 else ""


def _typed_values(tensor: onnx.TensorProto) -> int:
    fields = (
        tensor.float_data, tensor.int32_data, tensor.int64_data, tensor.double_data,
        tensor.uint64_data,
    )  # fmt: skip
    return sum(map(len, fields))


def _typed_count(elements: int, dtype: ir.DataType) -> int:
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return 2 * elements
    packed = {4: 2, 2: 4}.get(dtype.bitwidth, 1)
    return -(-elements // packed)
