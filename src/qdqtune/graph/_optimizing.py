"""Optimizing a model that may be quantized: folding, removal of no-ops, merging of duplicates."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes

from qdqtune.graph._editing import (
    all_nodes,
    bypass,
    drop_unused_nodes,
    holds_qdq,
    pinned,
    qdq_count,
)
from qdqtune.graph._file_tensor import FileTensor
from qdqtune.graph._fingerprint import tensor_digest
from qdqtune.graph._folding import fold
from qdqtune.graph._op_classes import QDQ_OPS, WEIGHTED_OPS, has_body, is_op, is_standard
from qdqtune.records._errors import ModelError
from qdqtune.records._results import OptimizeCounts

# Ops that preserve the order of values: no-ops if the shape stays the same.
_SHAPE_OPS = ("Expand", "Flatten", "Reshape", "Tile")
# From the first opset on, a Dropout does nothing unless training mode is set, which the second
# opset makes possible.
_PLAIN_DROPOUT, _TRAINED_DROPOUT = 7, 12

_RANDOM_OPS = frozenset(
    {
        "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    }
)  # fmt: skip
_PLAIN = frozenset(
    {
        ir.AttributeType.FLOAT, ir.AttributeType.FLOATS, ir.AttributeType.INT,
        ir.AttributeType.INTS, ir.AttributeType.STRING, ir.AttributeType.STRINGS,
    }
)  # fmt: skip
# Larger constants are not compared as attributes.
_MOST_BYTES = 1024
# onnx_ir copies all inputs of a node for each one that is replaced, so the inputs of nodes with
# more inputs than this are left alone.
_MOST_INPUTS = 1000
# Elements that are compared first: few weights with an equal start differ later.
_FIRST_ELEMENTS = 256
# The first file format in which an input may have a default; before, all weights were inputs.
_DEFAULTS_IR_VERSION = 4


def _does_nothing(node: ir.Node, opset: int) -> bool:
    if not is_standard(node) or not node.inputs or node.inputs[0] is None:
        return False
    source, result = node.inputs[0], node.outputs[0]
    if is_op(node, "Identity"):
        return True
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    if is_op(node, "Cast"):
        return source.dtype is not None and source.dtype == node.attributes.get_int("to")
    if is_op(node, "Transpose"):
        order = node.attributes.get_ints("perm")
        return order is not None and list(order) == list(range(len(order)))
    if is_op(node, *_SHAPE_OPS):
        return _is_static(source) and _is_static(result) and source.shape == result.shape
    if is_op(node, "Dropout"):
        return _PLAIN_DROPOUT <= opset < _TRAINED_DROPOUT or (
            opset >= _TRAINED_DROPOUT and (len(node.inputs) < 3 or node.inputs[2] is None)
        )
    return False


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(dim, int) and dim >= 0 for dim in value.shape)


def merge_nodes(graph: ir.Graph | ir.Function) -> int:
    """Merge nodes that compute the same result, in place.

    Left alone: quantization and random ops, ops of other domains, ops with bodies, producers of
    graph outputs, and inputs of nodes with very many inputs.

    Returns:
        Number of nodes removed, not counting Constant nodes.
    """
    first: dict[Hashable, ir.Node] = {}
    count = 0
    for node in graph:
        key = _key(node)
        if key is None:
            continue
        kept = first.setdefault(key, node)
        if kept is node or not all(map(_may_be_replaced, node.outputs)):
            continue
        for output, stays in zip(node.outputs, kept.outputs, strict=True):
            stays.shape = stays.shape or output.shape
            stays.type = stays.type or output.type
            output.replace_all_uses_with(stays)
        graph.remove(node, safe=True)
        count += not is_op(node, "Constant")
    return count


def merge_weights(graph: ir.Graph) -> int:
    """Merge initializers that are equal bit for bit, in place.

    Biases are not merged: a quantizer gives each the scale of its own layer. Neither are weights
    that nodes with very many inputs read.

    Returns:
        Number of weights removed.
    """
    groups = [[value for value in graph.initializers.values() if _may_share(value)]]
    # Weights are read as late as possible: most differ in shape or in their first values.
    for look in (_outline_of, _beginning, tensor_digest):
        groups = [same for group in groups for same in _parted(group, look)]
    for kept, *others in groups:
        for value in others:
            value.replace_all_uses_with(kept)
            graph.initializers.pop(value.name or "")
    return sum(len(group) - 1 for group in groups)


def _key(node: ir.Node) -> Hashable:
    """Return a key that identifies a node's result; None if there is none."""
    if not is_standard(node) or node.op_type in QDQ_OPS | _RANDOM_OPS or has_body(node):
        return None
    contents = {name: _content(each) for name, each in sorted(node.attributes.items())}
    if None in contents.values():
        return None
    outputs = tuple(bool(output.name) for output in node.outputs)
    return node.op_identifier(), tuple(node.inputs), tuple(contents.items()), outputs


def _content(attribute: ir.Attr) -> Hashable:
    if attribute.is_ref():
        return attribute.type, f"@{attribute.ref_attr_name}"
    if attribute.type in _PLAIN:
        # Its text distinguishes 0.0 from -0.0.
        return attribute.type, repr(attribute.value)
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().nbytes <= _MOST_BYTES:
        return attribute.type, tensor_digest(attribute.as_tensor())
    return None


def _may_be_replaced(value: ir.Value) -> bool:
    return not value.is_graph_output() and all(
        len(user.inputs) <= _MOST_INPUTS for user, _ in value.uses()
    )


def _may_share(value: ir.Value) -> bool:
    if value.const_value is None or value.is_graph_input() or not _may_be_replaced(value):
        return False
    return not any(position == 2 and is_op(user, *WEIGHTED_OPS) for user, position in value.uses())


def _outline_of(tensor: ir.TensorProtocol) -> Hashable:
    return tensor.dtype, tuple(tensor.shape)


def _beginning(tensor: ir.TensorProtocol) -> Hashable:
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        return None
    if isinstance(tensor, ir.ExternalTensor):
        most = _FIRST_ELEMENTS * tensor.dtype.bitwidth // 8
        return next(FileTensor.of(tensor).chunks(most), b"")
    return np.ascontiguousarray(tensor.numpy().reshape(-1)[:_FIRST_ELEMENTS]).tobytes()


def _parted(
    values: Sequence[ir.Value], look: Callable[[ir.TensorProtocol], Hashable]
) -> Iterator[list[ir.Value]]:
    """Yield groups of two or more weights that look the same."""
    found: dict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in values:
        assert value.const_value is not None
        found[look(value.const_value)].append(value)
    return (same for same in found.values() if len(same) > 1)


def optimize_graph(model: ir.Model) -> OptimizeCounts:
    """Optimize a model in place; a second call changes nothing.

    Inputs and outputs keep names, order and types, and remaining nodes keep their names. Constants
    are folded in the main graph only; no-ops and duplicates are removed from bodies and functions
    as well. Random ops are never computed or merged.

    Raises:
        ModelError: If onnxscript or onnx_ir can't process the model.
    """
    before, quantized = _op_types(model), qdq_count(model)
    done: Counter[str] = Counter()
    with _outputs_declared(model), _defaults_aside(model):
        # Newly inferred shapes allow more folding: before opset 13, one step at a time.
        outline = None
        while outline != (outline := _outline(model)):
            fold(model, keep_qdq=True)
            done += _clean(model)
            with pinned(model):
                drop_unused_nodes(model)
    if qdq_count(model) != quantized:
        raise ModelError(
            "Optimizing the model would change its Q/DQ.",
            "This is a bug in qdqtune: please report it with the model.",
        )
    return OptimizeCounts(before, _op_types(model), **done, qdq=quantized.total())


def _clean(model: ir.Model) -> Counter[str]:
    """Remove what folding leaves behind: no-ops, duplicates, functions that nothing calls."""
    done: Counter[str] = Counter()
    graphs: list[ir.Graph | ir.Function] = [*model.graphs(), *model.functions.values()]
    for graph in graphs:
        opsets = model.opset_imports if isinstance(graph, ir.Graph) else graph.opset_imports
        done["no_ops"] += sum(
            _does_nothing(node, opsets.get("", 0)) and bypass(node) for node in graph
        )
        if isinstance(graph, ir.Graph):
            done["duplicate_weights"] += merge_weights(graph)
        done["duplicate_nodes"] += merge_nodes(graph)
    done["unused_functions"] += _drop_functions(model)
    return done


def _drop_functions(model: ir.Model) -> int:
    """Remove functions that nothing calls, unless one of them contains quantization."""
    functions = dict(model.functions)
    passes.RemoveUnusedFunctionsPass()(model)  # type: ignore[no-untyped-call]
    gone = [function for key, function in functions.items() if key not in model.functions]
    if any(holds_qdq(node) for function in gone for node in function):
        model.functions.clear()
        model.functions.update(functions)
        return 0
    return len(gone)


def _outline(model: ir.Model) -> tuple[Counter[str], int]:
    """Return counts that change whenever anything is folded, merged or removed."""
    weights = sum(len(graph.initializers) for graph in model.graphs())
    return Counter(node.op_type for node in all_nodes(model)), weights


def _op_types(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in all_nodes(model) if not is_op(node, "Constant"))


@contextmanager
def _defaults_aside(model: ir.Model) -> Iterator[None]:
    """Make inputs with defaults plain inputs temporarily: they may be fed other values."""
    graph = model.graph
    held = [
        (value, value.const_value)
        for value in graph.inputs
        if value.is_initializer() and model.ir_version >= _DEFAULTS_IR_VERSION
    ]
    try:
        for value, _ in held:
            graph.initializers.pop(value.name or "")
            value.const_value = None
        yield
    finally:
        for value, tensor in held:
            value.const_value = tensor
            graph.initializers.add(value)


@contextmanager
def _outputs_declared(model: ir.Model) -> Iterator[None]:
    """Restore the declared outputs on exit, whatever produces them then."""
    declared = [(value.type, value.shape) for value in model.graph.outputs]
    yield
    for value, (kind, shape) in zip(model.graph.outputs, declared, strict=True):
        value.type = kind if kind is not None else value.type
        if shape is not None and not any(shape.is_unknown_dim(at) for at in range(len(shape))):
            value.shape = shape
