"""Merging of duplicate nodes and weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from qdqtune.graph.control_flow_bodies import has_body
from qdqtune.graph.file_tensor import FileTensor
from qdqtune.graph.fingerprint import tensor_digest
from qdqtune.graph.op_classes import QDQ_OPS, WEIGHTED_OPS, is_op, is_standard

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
# Larger constants than this are not compared as attributes.
_MOST_BYTES = 1024
# onnx_ir copies all inputs of a node for each one that is replaced, so the inputs of nodes with
# more inputs than this are left alone.
_MOST_INPUTS = 1000
# Elements compared first: few weights with an equal start differ later.
_FIRST_ELEMENTS = 256


def merge_nodes(graph: ir.Graph | ir.Function) -> int:
    """Merge nodes that compute the same, in place.

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
    alike: dict[Hashable, list[ir.Value]] = defaultdict(list)
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and _may_share(value):
            alike[tensor.dtype, tuple(tensor.shape)].append(value)
    groups = (
        same
        for found in alike.values()
        for begun in _parted(found, _beginning)
        for same in _parted(begun, tensor_digest)
    )
    count = 0
    for kept, *others in groups:
        for value in others:
            value.replace_all_uses_with(kept)
            graph.initializers.pop(value.name or "")
            count += 1
    return count


def _key(node: ir.Node) -> Hashable:
    """Return a key for what a node computes; None if there is none."""
    if not is_standard(node) or node.op_type in QDQ_OPS | _RANDOM_OPS or has_body(node):
        return None
    attributes = []
    for name, attribute in sorted(node.attributes.items()):
        content = _content(attribute)
        if content is None:
            return None
        attributes.append((name, attribute.type, content))
    return (
        node.op_identifier(),
        tuple(node.inputs),
        tuple(attributes),
        tuple(bool(output.name) for output in node.outputs),
    )


def _content(attribute: ir.Attr) -> str | None:
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type in _PLAIN:
        # Its text distinguishes 0.0 from -0.0.
        return repr(attribute.value)
    if attribute.type == ir.AttributeType.TENSOR and attribute.as_tensor().nbytes <= _MOST_BYTES:
        return tensor_digest(attribute.as_tensor())
    return None


def _may_be_replaced(value: ir.Value) -> bool:
    return not value.is_graph_output() and all(
        len(user.inputs) <= _MOST_INPUTS for user, _ in value.uses()
    )


def _may_share(value: ir.Value) -> bool:
    if value.is_graph_input() or not _may_be_replaced(value):
        return False
    return not any(position == 2 and is_op(user, *WEIGHTED_OPS) for user, position in value.uses())


def _beginning(tensor: ir.TensorProtocol) -> str:
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        return ""
    if isinstance(tensor, ir.ExternalTensor):
        return FileTensor.of(tensor).first_bytes(_FIRST_ELEMENTS * tensor.dtype.bitwidth // 8).hex()
    return np.ascontiguousarray(tensor.numpy().reshape(-1)[:_FIRST_ELEMENTS]).tobytes().hex()


def _parted(
    values: Sequence[ir.Value], look: Callable[[ir.TensorProtocol], str]
) -> Iterator[list[ir.Value]]:
    """Yield groups of more than one item with equal keys."""
    if len(values) < 2:
        return
    found: dict[str, list[ir.Value]] = defaultdict(list)
    for value in values:
        assert value.const_value is not None
        found[look(value.const_value)].append(value)
    yield from (same for same in found.values() if len(same) > 1)
