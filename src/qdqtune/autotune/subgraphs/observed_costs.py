"""What whole models spend their time on, in terms of the units of an assembly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from qdqtune.autotune.subgraphs.costs import ObservedCosts
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import DEQUANTIZE, QDQ_OPS, QUANTIZE
from qdqtune.records.layers import MappedLayer
from qdqtune.records.measurement import LayerTime


def look_at(
    index: GraphIndex,
    layers: Sequence[LayerTime],
    unit_of: Mapping[str, int],
    quantized: frozenset[int],
    otherwise: frozenset[int] = frozenset(),
    weights: Sequence[float] = (),
) -> ObservedCosts:
    """Add up the times of a model's layers by what they are for.

    Args:
        index: The model as it was opened, with its Q and DQ.
        layers: What the engine told about it.
        unit_of: Node name to the unit that it belongs to.
        quantized: Units of which anything is quantized in it.
        otherwise: Those that are so in another way than by their scheme.
        weights: By which a layer is divided among several units; equally without.
    """
    times: dict[int, float] = {}
    conversions: dict[str, dict[str, float]] = {QUANTIZE: {}, DEQUANTIZE: {}}
    rest_ms = 0.0
    for layer in nodes_of_layers(index, layers):
        kind, tensor = _conversion(index, layer)
        if tensor:
            spent = conversions[kind]
            spent[tensor] = spent.get(tensor, 0.0) + layer.ms
            continue
        shares = _shares(index, layer, unit_of, weights)
        if not shares:
            rest_ms += layer.ms
        for unit, share in shares.items():
            times[unit] = times.get(unit, 0.0) + layer.ms * share
    return ObservedCosts(
        quantized, times, rest_ms, conversions[QUANTIZE], conversions[DEQUANTIZE], otherwise
    )


def _conversion(index: GraphIndex, layer: MappedLayer) -> tuple[str, str]:
    """Which way a layer converts, and what; both empty if it does something else as well."""
    if not layer.executes or not layer.nodes or not QDQ_OPS.issuperset(layer.node_types):
        return "", ""
    nodes = [index.node[name] for name in layer.nodes]
    for node in nodes:
        if node.op_type == QUANTIZE and not _is_constant(index, node):
            return QUANTIZE, _given_name(index, node.inputs[0])
    for node in nodes:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if source is not None:
            return DEQUANTIZE, _given_name(index, source.inputs[0])
    return "", ""


def _shares(
    index: GraphIndex,
    layer: MappedLayer,
    unit_of: Mapping[str, int],
    weights: Sequence[float],
) -> dict[int, float]:
    names = {name for name, op in zip(layer.nodes, layer.node_types, strict=True)
             if op not in QDQ_OPS}  # fmt: skip
    if not names:  # a weight that is turned to floats in every run
        readers = (e.node for n in layer.nodes for v in index.node[n].outputs
                   for e in index.readers(_name(v)))  # fmt: skip
        names = set(readers)
    units = sorted({unit_of[name] for name in names if name in unit_of})
    worth = {unit: weights[unit] if weights else 1.0 for unit in units}
    total = sum(worth.values())
    if not total:
        return {unit: 1.0 / len(units) for unit in units}
    return {unit: each / total for unit, each in worth.items()}


def _is_constant(index: GraphIndex, node: ir.Node) -> bool:
    name = _name(node.inputs[0])
    return not name or index.is_constant(name)


def _given_name(index: GraphIndex, value: ir.Value | None) -> str:
    """What a tensor is called in the float model: a graph's output gives its name to its DQ."""
    name = _name(value)
    given = name.removesuffix("_unquantized")
    return given if given in index.value else name


def _name(value: ir.Value | None) -> str:
    return (value.name or "") if value is not None else ""
