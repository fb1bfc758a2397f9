"""Attributes a model's latency to its ops, from the layers that an engine reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from qdqtune.engines.layer_kinds import fits
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op, weight_axis
from qdqtune.records.layers import MappedLayer
from qdqtune.records.measurement import LayerTime

# Below this, the known layers are no better than an estimate from sizes.
_LEAST_KNOWN = 0.5


def shares_of_latency(index: GraphIndex, layers: Sequence[LayerTime]) -> dict[str, float]:
    """Return the share of the latency that each node accounts for, where known.

    Ops fused into the layer of another op (a Relu in a Conv) are counted with that op.

    Args:
        index: The float model.
        layers: The layers that the engine reported; empty if it can't.

    Returns:
        Node name to a share; the shares of known nodes add up to at most 1.
    """
    spent: dict[str, float] = {}
    total = 0.0
    for layer in nodes_of_layers(index, layers):
        total += layer.ms
        names = _responsible(index, layer)
        for name in names:
            spent[name] = spent.get(name, 0.0) + layer.ms / len(names)
    if total <= 0.0 or sum(spent.values()) < _LEAST_KNOWN * total:
        return estimated_shares(index)
    return {name: ms / total for name, ms in spent.items()}


def estimated_shares(index: GraphIndex) -> dict[str, float]:
    """Estimate shares from sizes: multiplications of weighted ops, and values read and written."""
    work = {node.name or "": _work(index, node) for node in index.nodes}
    total = sum(work.values())
    return {name: value / total for name, value in work.items()} if total else {}


def _responsible(index: GraphIndex, layer: MappedLayer) -> list[str]:
    """Return the main nodes of a layer: the rest was fused into them."""
    weighted = [name for name in layer.nodes if is_op(index.node[name], *WEIGHTED_OPS)]
    fitting = [name for name in layer.nodes if fits(layer.op_type, index.node[name].op_type)]
    return weighted or fitting or list(layer.nodes)


def _work(index: GraphIndex, node: ir.Node) -> float:
    sizes = [_size(index, value) for value in (*node.inputs, *node.outputs)]
    moved = float(sum(sizes))
    if not is_op(node, *WEIGHTED_OPS) or len(node.inputs) < 2 or node.inputs[1] is None:
        return moved
    weight = index.shape(node.inputs[1].name or "") or ()
    channels = weight[weight_axis(node)] if len(weight) > 1 else 1
    per_value = _size(index, node.inputs[1]) / (channels or 1)
    return moved + _size(index, node.outputs[0]) * per_value / 8.0


def _size(index: GraphIndex, value: ir.Value | None) -> int:
    shape = index.shape(value.name) if value is not None and value.name else None
    return math.prod(dim or 1 for dim in shape) if shape else 0
