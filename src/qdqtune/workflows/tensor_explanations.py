"""Why a tensor can be quantized, or can't: at its maker, and at every reader."""

from __future__ import annotations

from pathlib import Path

from qdqtune.autotune.patterns.eligibility import why_not, why_not_output
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.qdq.selection import unknown
from qdqtune.records.errors import UsageError
from qdqtune.records.inspection import TensorAnswer, TensorPlace
from qdqtune.records.placement import Edge


def answer_of(tensor: str, planner: QuantizationPlanner, path: Path) -> TensorAnswer:
    """Where a tensor could be quantized, and why not elsewhere.

    Args:
        tensor: Its name.
        planner: What the dialect can quantize in the model.
        path: The model's file, in which there may be more tensors than in the folded model.

    Raises:
        UsageError: If there is no such tensor.
    """
    index = planner.index
    if tensor not in index.value:
        raise _missing(tensor, index, path)
    dtype = index.dtype(tensor)
    return TensorAnswer(
        tensor=tensor,
        dtype=dtype.name.lower() if dtype is not None else "",
        dims=index.shape(tensor),
        constant=index.is_constant(tensor),
        maker=_maker(tensor, planner),
        readers=tuple(_reader(edge, planner) for edge in index.readers(tensor)),
    )


def _missing(tensor: str, index: GraphIndex, path: Path) -> UsageError:
    if tensor in GraphIndex(load_model(path)).value:
        return UsageError(
            f"The tensor {tensor!r} is not in the model that is tuned: it is folded into others, "
            "or stands between a Q and a DQ.",
            "Ask about what is before or behind it: `qdqtune inspect MODEL` lists the tensors at "
            "the borders of regions.",
        )
    return unknown("tensor", tensor, index.value)


def _maker(tensor: str, planner: QuantizationPlanner) -> TensorPlace:
    index = planner.index
    value = index.value[tensor]
    producer = value.producer()
    if producer is None:
        return TensorPlace("", "", 0, "no node makes it: a pair can stand at its readers")
    name = producer.name or ""
    position = list(producer.outputs).index(value)
    places = planner.units.get(name)
    return TensorPlace(
        node=name,
        op_type=producer.op_type,
        position=position,
        reason=why_not_output(index, index.position[name], position),
        dialect_reason=planner.left_float.get(name, ""),
        with_op=places is not None and tensor in places.outputs,
    )


def _reader(edge: Edge, planner: QuantizationPlanner) -> TensorPlace:
    index = planner.index
    if not edge.node:
        return TensorPlace("", "", edge.position, "the graph hands it out as it is")
    places = planner.units.get(edge.node)
    return TensorPlace(
        node=edge.node,
        op_type=index.node[edge.node].op_type,
        position=edge.position,
        reason=why_not(index, index.position[edge.node], edge.position),
        dialect_reason=planner.left_float.get(edge.node, ""),
        with_op=places is not None and edge in places.edges,
    )
