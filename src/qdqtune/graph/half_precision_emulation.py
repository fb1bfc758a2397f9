"""Half-precision emulation: float32 arithmetic with rounded results, for engines without kernels.

ONNX Runtime on CPUs has few float16 kernels and almost no bfloat16 ones. GPUs multiply in half
precision, accumulate in float32, then round; this module rewrites a model to do the same, op by op.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from qdqtune.graph.constants import retyped
from qdqtune.graph.op_classes import is_op
from qdqtune.graph.precision_conversion import set_output_type
from qdqtune.graph.precision_types import HALF_TYPES, Change, Slots, dtype_of, slots

_SMALL_BYTES = 1 << 16


def compute_in_float32(model: ir.Model) -> dict[str, str]:
    """Make every standard op of a model compute in float32, in place.

    Each half-precision result is rounded back by a pair of Casts behind it, so the numbers are
    those of half precision, including overflows. Inputs and outputs become float32 and keep their
    names.

    Args:
        model: A valid model with named nodes and inferred types.

    Returns:
        Node name to the name of its rounded result.
    """
    graph = model.graph
    change = Change(HALF_TYPES, ir.DataType.FLOAT, model.opset_imports.get("", 1))
    nodes = [node for node in graph if not is_op(node, "Cast", "Constant")]
    found = {node: slots(node, change) for node in nodes}
    _widen_small_constants(graph, found)
    wide: dict[ir.Value, ir.Value] = {}
    rounded: dict[ir.Node, ir.Value] = {}
    for value in graph.inputs:
        if change.concerns(value):
            _round(value, graph, wide)
    for node, movable in found.items():
        if not movable.whole:
            continue
        for position in movable.inputs:
            source = node.inputs[position]
            assert source is not None
            if dtype_of(source) in HALF_TYPES or source in wide:
                node.replace_input_with(position, _widened(source, graph, wide))
        for position in movable.outputs:
            set_output_type(node, ir.DataType.FLOAT)
            rounded[node] = _round(node.outputs[position], graph, wide)
    for position, value in enumerate(graph.outputs):
        if value in wide or change.concerns(value):
            _widen_output(graph, position, wide)
    return {node.name or "": value.name or "" for node, value in rounded.items()}


def _widen_small_constants(graph: ir.Graph, found: Mapping[ir.Node, Slots]) -> None:
    """Store constants that nothing reads in half precision in float32; no number changes.

    A Cast for each would also work, but a model can have 100,000 of them.
    """
    for value in graph.initializers.values():
        tensor = value.const_value
        if (
            tensor is not None
            and tensor.dtype in HALF_TYPES
            and tensor.nbytes <= _SMALL_BYTES
            and not value.is_graph_input()
            and not value.is_graph_output()
            and all(
                node in found and found[node].whole and position in found[node].input_set
                for node, position in value.uses()
            )
        ):
            value.const_value = retyped(tensor, ir.DataType.FLOAT, value.name)
            value.type = ir.TensorType(ir.DataType.FLOAT)


def _round(value: ir.Value, graph: ir.Graph, wide: dict[ir.Value, ir.Value]) -> ir.Value:
    """Make a value float32, and give its readers the value rounded to half precision."""
    dtype = dtype_of(value)
    assert dtype is not None
    value.type = ir.TensorType(ir.DataType.FLOAT)
    readers = list(value.uses())
    narrow = _cast(value, dtype, graph)
    again = _cast(narrow, ir.DataType.FLOAT, graph)
    wide[narrow] = wide[value] = again
    for node, position in readers:
        node.replace_input_with(position, narrow)
    return again


def _widened(value: ir.Value, graph: ir.Graph, wide: dict[ir.Value, ir.Value]) -> ir.Value:
    if value not in wide:
        wide[value] = _cast(value, ir.DataType.FLOAT, graph)
    return wide[value]


def _widen_output(graph: ir.Graph, position: int, wide: dict[ir.Value, ir.Value]) -> None:
    value = graph.outputs[position]
    if value.is_graph_input():
        return
    again = _widened(value, graph, wide)
    graph.outputs[position] = again
    name, value.name = value.name, f"{value.name}_unrounded"
    again.name = name


def _cast(value: ir.Value, dtype: ir.DataType, graph: ir.Graph) -> ir.Value:
    shape = None if value.shape is None else value.shape.copy()
    name = f"{value.name}_as_{dtype.name.lower()}"
    result = ir.Value(name=name, type=ir.TensorType(dtype), shape=shape)
    attributes = [ir.AttrInt64("to", dtype.value)]
    node = ir.Node("", "Cast", [value], attributes, outputs=[result], name=f"Cast_{name}")
    producer = value.producer()
    if producer is not None:
        graph.insert_after(producer, node)
    else:
        graph.insert_before(graph[0], node)
    return result
