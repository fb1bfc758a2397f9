"""Assigns nodes to layers by the tensors that layers read and write, most reliable first.

The order is: tensors that kept their names, the op that a layer of its kind must have, nodes
between a layer's own nodes, and nodes between those of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from qdqtune.engines.layer_kinds import LEADS, TRANSPARENT, Kind, fits, takes_anything
from qdqtune.engines.layer_owners import LayerOwners
from qdqtune.graph.op_classes import is_op

# Ops that engines remove altogether.
_NOTHING = ("Dropout", "Identity")

# More nodes than any engine fuses into a layer without naming them; keeps the search linear.
_MOST_BETWEEN = 500

_Step = Callable[[str], Sequence[str]]


def take_by_wiring(owners: LayerOwners) -> None:
    """Assign free nodes to layers by their wiring."""
    for number in range(len(owners.layers)):
        _take_back_to_inputs(owners, number)
    for step in (owners.model.before, owners.model.after):
        for number, kind in enumerate(owners.kinds):
            if kind in LEADS and owners.owned[number]:
                _take_lead(owners, number, step)
    for number in range(len(owners.layers)):
        _take_inside(owners, number)
    computing_first = sorted(
        range(len(owners.layers)), key=lambda n: owners.kinds[n] in TRANSPARENT
    )
    for number in computing_first:
        if not owners.owned[number]:
            _take_between(owners, number)


def _take_back_to_inputs(owners: LayerOwners, number: int) -> None:
    """Assign nodes between a layer's own and the tensors that it reads under the model's names."""
    read = _same_as(owners, owners.layers[number].inputs)
    if not read:
        return
    # Layers that only copy write what they are named after, under any name.
    copying = {each for each in owners.wires.feeding(number) if owners.kinds[each] in TRANSPARENT}
    for name in owners.model.in_order(owners.owned[number]):
        for tensor in owners.model.inputs(name):
            producer = owners.index.value[tensor].producer()
            if producer is not None and tensor not in read:
                for each in _grounded(owners, number, producer.name or "", read, copying):
                    owners.own(number, each)


def _same_as(owners: LayerOwners, tensors: Iterable[str]) -> set[str]:
    """Return the tensors that the model has, and their aliases.

    Constants are left out: they don't identify a layer, since every node may read the same one.
    """
    index = owners.index
    found = {each for each in tensors if each in index.value and not index.is_constant(each)}
    waiting = list(found)
    while waiting:
        for edge in index.readers(waiting.pop()):
            node = index.node.get(edge.node)
            same = node.outputs[0].name if is_op(node, *_NOTHING) and node else None
            if same and same not in found:
                found.add(same)
                waiting.append(same)
    return found


def _grounded(
    owners: LayerOwners, number: int, start: str, read: set[str], copying: set[int]
) -> set[str]:
    """Return a node and its ancestors down to the layer's inputs; empty if it reads others."""
    inside: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in inside or owners.owner.get(name) == number:
            continue
        written = any(each.name in owners.wires.written for each in owners.index.node[name].outputs)
        if written or not owners.may_take(number, name):
            return set()
        inside.add(name)
        for tensor in owners.model.inputs(name):
            producer = owners.index.value[tensor].producer()
            if tensor in read or (producer and owners.owner.get(producer.name or "") in copying):
                continue
            if producer is None:
                return set()
            waiting.append(producer.name or "")
    return inside


def _take_lead(owners: LayerOwners, number: int, step: _Step) -> None:
    """Assign the convolution, product or pooling of a layer of that kind, if none is named."""
    kind = owners.kinds[number]
    if any(owners.kind(name) is kind for name in owners.owned[number]):
        return
    for name in _path_to(owners, kind, owners.model.in_order(owners.owned[number])[::-1], step):
        owners.own(number, name)


def _path_to(owners: LayerOwners, kind: Kind, starts: list[str], step: _Step) -> list[str]:
    """Return the nearest free node of a kind, and the nodes on the way to it."""
    came_from: dict[str, str] = {}
    waiting = list(starts)
    for name in waiting:
        for each in step(name):
            if each in came_from or not owners.is_free(each):
                continue
            came_from[each] = name
            if owners.kind(each) is kind:
                path = [each]
                while came_from[path[-1]] in came_from:
                    path.append(came_from[path[-1]])
                return path
            if owners.kind(each) not in LEADS:
                waiting.append(each)
    return []


def _take_inside(owners: LayerOwners, number: int) -> None:
    """Assign free nodes between a layer's own: no other layer could run in between."""
    if len(owners.owned[number]) < 2:
        return
    behind = _free_from(owners, [number], owners.model.before)
    for name in behind & _free_from(owners, [number], owners.model.after) if behind else ():
        owners.own(number, name)


def _take_between(owners: LayerOwners, number: int) -> None:
    """Assign free nodes between those of its neighbours to a layer without names."""
    producers = owners.wires.producers(number, owners.has_nodes)
    consumers = owners.wires.consumers(number, owners.has_nodes)
    ahead = _free_from(owners, producers, owners.model.after)
    behind = _free_from(owners, consumers, owners.model.before)
    if not (producers and consumers):
        ahead = behind = ahead | behind
    between = [name for name in ahead & behind if not owners.is_late(number, name)]
    for name in _fitting(owners, number, owners.model.in_order(between)):
        owners.own(number, name)


def _fitting(owners: LayerOwners, number: int, between: list[str]) -> list[str]:
    """Return the nodes in between from the first one that fits the layer's type."""
    layer_type, kind = owners.layers[number].op_type, owners.kinds[number]
    if kind in TRANSPARENT:
        return [name for name in between if owners.kind(name) is kind]
    for position, name in enumerate(between):
        if fits(layer_type, owners.index.node[name].op_type):
            return between[position:]
    return between if takes_anything(layer_type) else []


def _free_from(owners: LayerOwners, layers: Iterable[int], step: _Step) -> set[str]:
    """Return free nodes reachable from those of some layers; none if there are too many."""
    found: set[str] = set()
    waiting = [name for number in layers for name in owners.owned[number]]
    while waiting:
        if len(found) > _MOST_BETWEEN:
            return set()
        for name in step(waiting.pop()):
            if name not in found and owners.is_free(name):
                found.add(name)
                waiting.append(name)
    return found
