"""Maps the layers of an engine to the nodes of the opened model.

By names, then by wiring, then by neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir

from qdqtune.engines.layers._naming import (
    COPY,
    EXACT,
    LEADS,
    SERVICES,
    TRANSPARENT,
    Kind,
    fits,
    kind_of,
    nodes_named,
    takes_anything,
)
from qdqtune.engines.layers._wiring import LayerWiring, ModelWiring
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, is_op
from qdqtune.records._layers import BETWEEN, CLOSED, NAMED, PART, UNKNOWN, MappedLayer
from qdqtune.records._measurement import LayerTime


class LayerOwners:
    """The nodes of each layer; layers are identified by position.

    Args:
        index: The model that the engine opened.
        layers: The layers that the engine reported, in order of execution.

    Attributes:
        index: As passed.
        layers: As passed.
        kinds: The kind of each layer.
        owner: The layer that executes a node, by node name; nodes without a layer are missing.
        owned: Names of the nodes that each layer executes.
        told: Names of the nodes that the engine mentions with each layer.
        named: Whether a layer's nodes were found by name.
        wires: The wiring of the layers.
        model: The wiring of the model.
    """

    def __init__(self, index: GraphIndex, layers: Sequence[LayerTime]) -> None:
        self.index = index
        self.layers = layers
        self.kinds = [kind_of(layer.op_type) for layer in layers]
        self.wires = LayerWiring(layers)
        self.owner: dict[str, int] = {}
        self.owned: list[set[str]] = [set() for _ in layers]
        self.told: list[list[str]] = [[] for _ in layers]
        self._take_named()
        self.named = [bool(owned) for owned in self.owned]
        self.model = ModelWiring(index, self._is_told)
        self._take_written()

    def own(self, number: int, name: str) -> None:
        """Assign a node to a layer."""
        self.owner[name] = number
        self.owned[number].add(name)

    def has_nodes(self, number: int) -> bool:
        """Whether a layer executes any node."""
        return bool(self.owned[number])

    def kind(self, name: str) -> Kind:
        """Return the kind of a node."""
        return kind_of(self.index.node[name].op_type)

    def is_free(self, name: str) -> bool:
        """Whether a node is computed at run time and has no layer yet."""
        return name not in self.owner and name in self.model.computed

    def is_late(self, number: int, name: str) -> bool:
        """Whether a layer runs after one that reads the node's output."""
        return any(self.owner.get(each, number) < number for each in self.model.after(name))

    def may_take(self, number: int, name: str) -> bool:
        """Whether a free node can belong to a layer, by their kinds and the layer order."""
        if not self.is_free(name) or self.is_late(number, name):
            return False
        kind, layer_kind = self.kind(name), self.kinds[number]
        if layer_kind not in TRANSPARENT:
            return True
        return kind is layer_kind or (kind in TRANSPARENT and self.named[number])

    def _take_named(self) -> None:
        claims: dict[str, list[tuple[int, int, int]]] = {}
        for number, layer in enumerate(self.layers):
            for name, strength in nodes_named(self.index, layer):
                self.told[number].append(name)
                if self._may_be_named(number, name, exactly=strength == EXACT):
                    fit = int(fits(layer.op_type, self.index.node[name].op_type))
                    claims.setdefault(name, []).append((fit, strength, -number))
        for name, claim in claims.items():
            exact = any(strength == EXACT for _, strength, _ in claim)
            sure = [(fit, EXACT if exact else s, n) for fit, s, n in claim if exact or s != COPY]
            if sure:
                self.own(-max(sure)[2], name)

    def _may_be_named(self, number: int, name: str, *, exactly: bool) -> bool:
        """Whether a layer named after a node may execute it: it could also transpose an operand."""
        if self.layers[number].op_type in SERVICES:
            return self.kind(name) is Kind.MOVE
        return exactly or self.kinds[number] not in TRANSPARENT or self.kind(name) in TRANSPARENT

    def _is_told(self, node: ir.Node) -> bool:
        written = self.wires.written
        return node.name in self.owner or any(each.name in written for each in node.outputs)

    def _take_written(self) -> None:
        """Assign nodes whose outputs a layer writes under their own names."""
        for number, layer in enumerate(self.layers):
            for tensor in layer.outputs:
                value = self.index.value.get(tensor)
                producer = value.producer() if value is not None else None
                if producer is not None and self.may_take(number, producer.name or ""):
                    self.own(number, producer.name or "")


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
