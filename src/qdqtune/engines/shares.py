"""Which ops of a model its latency goes into, from the layers that an engine says it ran.

Engines run graphs of their own. What is left of ours are names: of an op, of an op with the name of
a fusion behind it, of several ops, or of the tensor that the layer computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.records.measurement import LayerTime

# Below this, what the layers' names tell is not worth more than a guess from sizes.
_LEAST_KNOWN = 0.5
# What ONNX Runtime calls a layer in its blocked layout: the tensor, and this.
_SUFFIX = "_nchwc"
_TOGETHER = " + "


def shares_of_latency(index: GraphIndex, layers: Iterable[LayerTime]) -> dict[str, float]:
    """The part of the latency that each node is responsible for, as far as it can be told.

    What runs inside the layer of another op (a Relu in a Conv) is counted with that op.

    Args:
        index: The float model.
        layers: What the engine said about it; nothing if it can't tell.

    Returns:
        Node name to a share; the shares of known nodes add up to at most 1.
    """
    spent: dict[str, float] = {}
    total = 0.0
    for layer in layers:
        total += layer.ms
        names = list(_nodes_of(index, layer.name))
        for name in names:
            spent[name] = spent.get(name, 0.0) + layer.ms / len(names)
    if total <= 0.0 or sum(spent.values()) < _LEAST_KNOWN * total:
        return estimated_shares(index)
    return {name: ms / total for name, ms in spent.items()}


def estimated_shares(index: GraphIndex) -> dict[str, float]:
    """A guess from sizes: multiplications of weighted ops, and values that are read and written."""
    work = {node.name or "": _work(index, node) for node in index.nodes}
    total = sum(work.values())
    return {name: value / total for name, value in work.items()} if total else {}


def _nodes_of(index: GraphIndex, layer: str) -> Iterator[str]:
    for part in layer.split(_TOGETHER):
        name = _node_named(index, part.strip())
        if name:
            yield name


def _node_named(index: GraphIndex, text: str) -> str:
    if text in index.node:
        return text
    tensor = text.removesuffix(_SUFFIX)
    if tensor in index.value:
        return _first_of_fused(index, index.value[tensor].producer())
    while "/" in text:
        text = text.rpartition("/")[0]
        if text in index.node:
            return text
    return ""


def _first_of_fused(index: GraphIndex, node: ir.Node | None) -> str:
    """The weighted op that an activation behind it was fused into, or the node itself."""
    first = node
    while first is not None and not is_op(first, *WEIGHTED_OPS):
        value = first.inputs[0] if first.inputs else None
        if value is None or len(index.readers(value.name or "")) != 1:
            break
        first = value.producer()
    found = first if is_op(first, *WEIGHTED_OPS) else node
    return found.name or "" if found is not None else ""


def _work(index: GraphIndex, node: ir.Node) -> float:
    sizes = [_size(index, value) for value in (*node.inputs, *node.outputs)]
    moved = float(sum(sizes))
    if not is_op(node, *WEIGHTED_OPS) or len(node.inputs) < 2 or node.inputs[1] is None:
        return moved
    weight = index.shape(node.inputs[1].name or "") or ()
    channels = weight[0] if node.op_type.startswith("Conv") and weight else None
    per_value = _size(index, node.inputs[1]) / (channels or (weight[-1] if weight else 1) or 1)
    return moved + _size(index, node.outputs[0]) * per_value / 8.0


def _size(index: GraphIndex, value: ir.Value | None) -> int:
    shape = index.shape(value.name or "") if value is not None else None
    return math.prod(dim or 1 for dim in shape) if shape else 0
