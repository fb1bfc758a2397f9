"""Maps the layers of an engine to the nodes of the opened model that they execute."""

from __future__ import annotations

from collections.abc import Sequence

from qdqtune.engines.layer_completion import take_the_rest
from qdqtune.engines.layer_kinds import SERVICES, TRANSPARENT, Kind, kind_of
from qdqtune.engines.layer_owners import LayerOwners
from qdqtune.engines.layer_structure import take_by_wiring
from qdqtune.graph.index import GraphIndex
from qdqtune.records.layers import BETWEEN, CLOSED, NAMED, PART, UNKNOWN, MappedLayer
from qdqtune.records.measurement import LayerTime


def nodes_of_layers(index: GraphIndex, layers: Sequence[LayerTime]) -> list[MappedLayer]:
    """Find the nodes of every layer; each node is executed by at most one.

    Args:
        index: The model that the engine opened, with its node names.
        layers: The layers that the engine reported, in order of execution.

    Returns:
        The layers, in the same order.
    """
    owners = LayerOwners(index, layers)
    take_by_wiring(owners)
    take_the_rest(owners)
    return [_mapped(index, layers, owners, number) for number in range(len(layers))]


def _mapped(
    index: GraphIndex, layers: Sequence[LayerTime], owners: LayerOwners, number: int
) -> MappedLayer:
    layer = layers[number]
    if owners.owned[number]:
        nodes, how = owners.owned[number], NAMED if owners.named[number] else CLOSED
    else:
        nodes, how = _served(layer, owners, number)
    names = tuple(owners.model.in_order(nodes))
    return MappedLayer(
        name=layer.name,
        op_type=layer.op_type,
        ms=layer.ms,
        precision=layer.precision,
        nodes=names,
        node_types=tuple(index.node[name].op_type for name in names),
        how=how,
        converts=_converts(index, layers, owners, number),
    )


def _served(layer: LayerTime, owners: LayerOwners, number: int) -> tuple[set[str], str]:
    """Return the nodes that a layer serves: those mentioned, else a consumer's or producer's."""
    mentioned = {owners.owner[name] for name in owners.told[number] if name in owners.owner}
    near = (
        sorted(mentioned)
        or owners.wires.consumers(number, owners.has_nodes)
        or sorted(owners.wires.producers(number, owners.has_nodes), reverse=True)
    )
    if not near:
        return set(), UNKNOWN
    return owners.owned[near[0]], BETWEEN if kind_of(layer.op_type) in TRANSPARENT else PART


def _converts(
    index: GraphIndex, layers: Sequence[LayerTime], owners: LayerOwners, number: int
) -> bool:
    """Whether a layer only converts the type of values."""
    layer = layers[number]
    if owners.owned[number]:
        kinds = {kind_of(index.node[name].op_type) for name in owners.owned[number]}
        return kinds == {Kind.TYPE}
    if layer.op_type in SERVICES:
        fed = {layers[each].precision for each in owners.wires.fed(number)}
        return not fed <= {layer.precision, ""}
    return kind_of(layer.op_type) is Kind.TYPE
