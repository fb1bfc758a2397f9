"""Answers of `inspect --why`: what can be quantized at a tensor or of a node, and why not more."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import is_op
from qdqtune.qdq._dynamic import FORMS
from qdqtune.qdq._quantization_planner import QuantizationPlanner, unknown
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge
from qdqtune.records._results import NodeAnswer, NodePlace, TensorAnswer, TensorPlace
from qdqtune.search.patterns._insertion_points import why_not, why_not_output


def answer_of(name: str, planner: QuantizationPlanner, path: Path) -> TensorAnswer | NodeAnswer:
    """Return where a tensor or an op can be quantized, and why it can't be elsewhere.

    Args:
        name: The name of a tensor or a node; of both, the tensor's counts.
        planner: Knows what the dialect can quantize in the model.
        path: The model's file, which may have more tensors than the folded model.

    Raises:
        UsageError: If there is neither.
    """
    index = planner.index
    if name in index.value:
        return _of_tensor(name, planner)
    if name in index.node:
        return _of_node(index.node[name], planner)
    given = GraphIndex(load_model(path))
    if name not in given.value and name not in given.node:
        raise unknown("tensor or node", name, {*index.value, *index.node})
    kind = "tensor" if name in given.value else "node"
    raise UsageError(
        f"The {kind} {name!r} is not in the model that is tuned: it is folded into others, "
        "or stands between a Q and a DQ.",
        "Ask about what is before or behind it: `qdqtune inspect MODEL` lists the tensors at "
        "the borders of regions.",
    )


def _of_node(node: ir.Node, planner: QuantizationPlanner) -> NodeAnswer:
    index, name = planner.index, node.name or ""
    inputs = [
        NodePlace(edge.tensor, _place(node, edge.position, edge, planner))
        for position, value in enumerate(node.inputs)
        if value is not None and value.name
        for edge in [Edge(value.name, name, position)]
    ]
    outputs = [
        NodePlace(value.name, _place(node, position, value.name, planner))
        for position, value in enumerate(node.outputs)
        if value.name and value.name in index.value
    ]
    at_run_time = [each.place for each in inputs if each.place.at_run_time is not None]
    return NodeAnswer(
        node=name,
        op_type=node.op_type,
        quantizable=name in planner.units,
        reason=planner.left_float.get(name, ""),
        at_run_time=any(each.at_run_time for each in at_run_time) if at_run_time else None,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )


def _of_tensor(tensor: str, planner: QuantizationPlanner) -> TensorAnswer:
    index = planner.index
    value, dtype = index.value[tensor], index.dtype(tensor)
    maker = TensorPlace("", "", 0, "no node makes it: a pair can stand at its readers")
    if (producer := value.producer()) is not None:
        maker = _place(producer, list(producer.outputs).index(value), tensor, planner)
    return TensorAnswer(
        tensor=tensor,
        dtype=dtype.name.lower() if dtype is not None else "",
        dims=index.shape(tensor),
        constant=index.is_constant(tensor),
        maker=maker,
        readers=tuple(
            _place(index.node[edge.node], edge.position, edge, planner)
            if edge.node
            else TensorPlace("", "", edge.position, "the graph hands it out as it is")
            for edge in index.readers(tensor)
        ),
    )


def _place(
    node: ir.Node, position: int, what: Edge | str, planner: QuantizationPlanner
) -> TensorPlace:
    """Examine an input of a node as a place for a pair, or an output if `what` is its tensor."""
    index, name, is_edge = planner.index, node.name or "", isinstance(what, Edge)
    unit = planner.units.get(name)
    at_run_time, why = None, ""
    if isinstance(what, Edge) and position == 0 and is_op(node, *FORMS):
        why = planner.why_not_at_run_time(node)
        at_run_time = not why
    return TensorPlace(
        node=name,
        op_type=node.op_type,
        position=position,
        reason=(why_not if is_edge else why_not_output)(index, index.position[name], position),
        dialect_reason=planner.left_float.get(name, ""),
        with_op=unit is not None and what in (unit.edges if is_edge else unit.outputs),
        at_run_time=at_run_time,
        why_not_at_run_time=why,
    )
