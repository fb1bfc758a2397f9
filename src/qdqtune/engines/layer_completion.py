"""Assigns nodes that neither names nor wiring determine to a neighbouring layer."""

from __future__ import annotations

from qdqtune.engines.layer_kinds import LEADS, fits, kind_of, takes_anything
from qdqtune.engines.layer_owners import LayerOwners
from qdqtune.graph.op_classes import DEQUANTIZE


def take_the_rest(owners: LayerOwners) -> None:
    """Assign the remaining fused nodes to the layers around them."""
    order = [node.name or "" for node in owners.index.nodes]
    for name in filter(owners.is_free, order):
        _join_producer(owners, name)
    for name in reversed(order):
        if name not in owners.owner:
            _join_reader(owners, name)
    for name in filter(owners.is_free, order):
        _join_producer(owners, name, whatever=True)
    for name in reversed(order):
        _pull_ahead(owners, name)


def _join_producer(owners: LayerOwners, name: str, *, whatever: bool = False) -> None:
    """Assign a fused op to the last layer that feeds it: only then are its inputs available."""
    feeding = [owners.owner[each] for each in owners.model.before(name) if each in owners.owner]
    if not feeding:
        return
    last = max(feeding)
    kept = any(tensor in owners.wires.written for tensor in owners.model.inputs(name))
    is_dequantize = owners.index.node[name].op_type == DEQUANTIZE
    reads_ahead = is_dequantize or kept or owners.kind(name) in LEADS
    inside = all(owners.owner.get(each) in feeding for each in owners.model.after(name))
    wanted = whatever or inside or (owners.may_take(last, name) and not reads_ahead)
    if wanted and _is_place_for(owners, last, name):
        owners.own(last, name)


def _is_place_for(owners: LayerOwners, number: int, name: str) -> bool:
    """Whether a layer can run a node: a Concat runs no product, which was merged elsewhere."""
    op_type, layer_type = owners.index.node[name].op_type, owners.layers[number].op_type
    return kind_of(op_type) not in LEADS or fits(layer_type, op_type) or takes_anything(layer_type)


def _join_reader(owners: LayerOwners, name: str) -> None:
    """Assign a node that precedes a layer's nodes, or is a constant of theirs, to that layer."""
    reading = {owners.owner[each] for each in owners.model.after(name) if each in owners.owner}
    alone = len(reading) == 1 and name not in owners.model.of_shapes
    wanted = alone or (bool(reading) and name in owners.model.computed)
    if wanted and _is_place_for(owners, min(reading), name):
        owners.own(min(reading), name)


def _pull_ahead(owners: LayerOwners, name: str) -> None:
    """Move a node that several layers copy, and one is named after, to the first that needs it."""
    number = owners.owner.get(name)
    if number is None or not owners.is_late(number, name) or owners.kind(name) in LEADS:
        return
    if len(owners.owned[number]) > 1:
        owners.owned[number].remove(name)
        owners.own(min(owners.owner.get(each, number) for each in owners.model.after(name)), name)
