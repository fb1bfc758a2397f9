"""Folds biases that are added behind a Conv into the Conv.

Some exporters write every bias as a separate Add. Engines fuse the two in floats; with Q/DQ between
them they can't, and the sum is rounded twice.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from qdqtune.graph.naming import FreeNames, value_names
from qdqtune.graph.op_classes import QDQ_OPS, is_op
from qdqtune.graph.weights import values_of

_CONVS = ("Conv", "ConvTranspose")


def fold_conv_biases(model: ir.Model, *, keep_qdq: bool = False) -> bool:
    """Fold constants added to the results of Convs into their biases, in place.

    A Conv whose weight is not a plain constant is left alone: it may be quantized, and its result
    must not change in the last bit.

    Args:
        model: The model.
        keep_qdq: Whether to also leave alone Convs that read dequantized values or whose sums are
            quantized.

    Returns:
        Whether anything changed.
    """
    names = FreeNames(value_names(model))
    modified = False
    for node in model.graph:
        if not is_op(node, "Add") or (found := _conv_and_bias(node)) is None:
            continue
        conv, bias = found
        if not (keep_qdq and _touches_qdq(conv, node)):
            _absorb(node, conv, bias, names.new(f"{conv.name}_bias"))
            modified = True
    return modified


def _touches_qdq(conv: ir.Node, add: ir.Node) -> bool:
    read = (value.producer() for value in conv.inputs if value is not None)
    return any(is_op(node, *QDQ_OPS) for node in (*read, *add.outputs[0].consumers()))


def _conv_and_bias(add: ir.Node) -> tuple[ir.Node, ir.Value] | None:
    """Return the Conv before an Add and the addend, if that is one number per channel."""
    if len(add.inputs) != 2:
        return None
    for data, bias in (add.inputs, add.inputs[::-1]):
        conv = data.producer() if data is not None else None
        if conv is None or data is None or bias is None or not is_op(conv, *_CONVS):
            continue
        if data.is_graph_output() or len(data.uses()) != 1 or conv.graph is not add.graph:
            continue
        if _fits(conv, bias):
            return conv, bias
    return None


def _fits(conv: ir.Node, bias: ir.Value) -> bool:
    weight = conv.inputs[1]
    given = conv.inputs[2] if len(conv.inputs) > 2 else None
    constants = [weight, bias] if given is None else [weight, bias, given]
    if any(each is None or not each.is_initializer() for each in constants):
        return False
    values = [each.const_value for each in constants if each is not None]
    if any(value is None or value.dtype != ir.DataType.FLOAT for value in values):
        return False
    filters, added = values[0], values[1]
    assert filters is not None
    assert added is not None
    rank, channels = len(filters.shape), _channels(conv, filters)
    shape = (1,) * (rank - len(added.shape)) + tuple(added.shape.numpy())
    return rank > 2 and shape == (1, channels, *[1] * (rank - 2))


def _channels(conv: ir.Node, filters: ir.TensorProtocol) -> int:
    shape = filters.shape.numpy()
    if conv.op_type == "Conv":
        return int(shape[0])
    return int(shape[1]) * conv.attributes.get_int("group", 1)


def _absorb(add: ir.Node, conv: ir.Node, bias: ir.Value, name: str) -> None:
    graph = add.graph
    assert isinstance(graph, ir.Graph)
    assert bias.const_value is not None
    values = values_of(bias.const_value).reshape(-1).astype(np.float32)
    given = conv.inputs[2] if len(conv.inputs) > 2 else None
    if given is not None:
        assert given.const_value is not None
        values = values + values_of(given.const_value)
    result = add.outputs[0]
    added = ir.Value(
        name=name,
        shape=ir.Shape(values.shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=ir.Tensor(values, name=name),
    )
    graph.register_initializer(added)
    conv.resize_inputs(3)
    conv.replace_input_with(2, added)
    kept = conv.outputs[0]
    result.replace_all_uses_with(kept, replace_graph_outputs=True)
    kept.name, result.name = result.name, None
    kept.shape, kept.type = result.shape or kept.shape, result.type or kept.type
    graph.remove(add, safe=True)
