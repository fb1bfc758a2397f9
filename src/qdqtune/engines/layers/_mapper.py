"""Maps the layers of an engine to the nodes of the opened model.

By names, then by wiring. Engines whose names are incomplete leave nodes over, which are assigned by
the neighbours of a layer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence

import onnx_ir as ir

from qdqtune.engines.layers._naming import (
    COPY,
    EXACT,
    LEADS,
    SERVICES,
    TRANSPARENT,
    Kind,
    NamedLayer,
    WholePart,
    fits,
    kind_of,
    named_layer,
    takes_anything,
)
from qdqtune.engines.layers._wiring import LayerWiring, ModelWiring, reached, split
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE
from qdqtune.records._layers import BETWEEN, CLOSED, NAMED, PART, UNKNOWN, MappedLayer
from qdqtune.records._measurement import LayerTime

# More nodes than any engine fuses into a layer without naming them; keeps the search linear.
_MOST_BETWEEN = 500

_Step = Callable[[str], Sequence[str]]


def nodes_of_layers(index: GraphIndex, layers: Sequence[LayerTime]) -> list[MappedLayer]:
    """Find the nodes of every layer of a running engine; each node is executed by at most one.

    Args:
        index: The model that the engine opened, with its node names.
        layers: The layers that the engine reported, in order of execution.

    Returns:
        The layers, in the same order.
    """
    return map_layers(index, [named_layer(index, layer) for layer in layers])


def map_layers(
    index: GraphIndex, layers: Sequence[NamedLayer], *, complete: bool = False
) -> list[MappedLayer]:
    """Find the nodes of every layer.

    Args:
        index: The model that the engine was built from, with its node names.
        layers: In order of execution.
        complete: Whether names and tensors identify all nodes of a layer. A node is then in every
            layer that claims it, and none is assigned by neighbours. Otherwise each node is
            executed by at most one layer.

    Returns:
        The layers in the same order; a part of the model that was compiled as a whole gives several
        of them, one per natural sublayer, numbered after its name.
    """
    owners = _Owners(index, layers, complete=complete)
    if complete:
        _take_enclosed(owners)
        _take_left_over(owners)
    else:
        _take_by_wiring(owners)
        _take_the_rest(owners)
    return _Result(owners).layers()


class _Owners:
    """The nodes of each layer; layers are identified by position.

    Attributes:
        index: The model.
        layers: As passed to `map_layers`.
        owner: The layer that executes a node, by node name; nodes without a layer are missing.
        owned: Names of the nodes that each layer executes.
        named: Whether a layer's nodes were found by name.
        wires: The wiring of the layers.
        model: The wiring of the model.
    """

    def __init__(self, index: GraphIndex, layers: Sequence[NamedLayer], *, complete: bool) -> None:
        self.index = index
        self.layers = layers
        self.wires = LayerWiring([layer.time for layer in layers])
        self.owner: dict[str, int] = {}
        self.owned: list[set[str]] = [set() for _ in layers]
        if complete:
            self.model = ModelWiring(index)
            self._take_all_claimed()
        else:
            claims = _claims(index, layers)
            self.model = ModelWiring(
                index, lambda node: node.name in claims or self.is_written(node)
            )
            for name, (_, _, before) in claims.items():
                self.own(-before, name)
        self.named = [bool(owned) for owned in self.owned]

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
        kind, layer_kind = self.kind(name), self.layers[number].kind
        if layer_kind not in TRANSPARENT:
            return True
        return kind is layer_kind or (kind in TRANSPARENT and self.named[number])

    def producers_of(self, tensors: Iterable[str]) -> list[str]:
        """Return the nodes that write those of some tensors that the model has."""
        values = (self.index.value[tensor] for tensor in tensors if tensor in self.index.value)
        producers = (value.producer() for value in values)
        return [node.name or "" for node in producers if node is not None]

    def _take_all_claimed(self) -> None:
        for number, layer in reversed(list(enumerate(self.layers))):  # the first is the owner
            if layer.kind is Kind.TYPE or not all(map(self.model.is_fixed, layer.told)):
                for name, _ in layer.claims:
                    self.own(number, name)

    def is_written(self, node: ir.Node) -> bool:
        """Whether a layer writes an output of a node under its own name."""
        return any(each.name in self.wires.producer for each in node.outputs)


def _claims(index: GraphIndex, layers: Sequence[NamedLayer]) -> dict[str, tuple[bool, int, int]]:
    """Return the best claim on each node: whether the types fit, its reliability, and the layer.

    The layer is negative, so that the first of equal claims is the largest.
    """
    claims: dict[str, list[tuple[bool, int, int]]] = {}
    for number, layer in enumerate(layers):
        for name, strength in layer.claims:
            fit = fits(layer.time.op_type, index.node[name].op_type)
            claims.setdefault(name, []).append((fit, strength, -number))
    best = {}
    for name, claim in claims.items():
        exact = any(strength == EXACT for _, strength, _ in claim)
        sure = [(fit, EXACT if exact else s, n) for fit, s, n in claim if exact or s != COPY]
        if sure:
            best[name] = max(sure)
    return best


def _take_enclosed(owners: _Owners) -> None:
    """Assign nodes between the tensors of the layers that compute and have no nodes yet."""
    for number, layer in enumerate(owners.layers):
        if owners.owned[number] or layer.kind in TRANSPARENT:
            continue
        starts, ends = set(layer.reads), owners.producers_of(layer.writes)
        has_all = bool(layer.reads and layer.writes) and all((*layer.reads, *layer.writes))
        if layer.whole is not None:
            if not has_all:
                starts |= _computed_inputs(owners, layer.whole.first)
                ends = [*ends, *layer.whole.last] or _up_to_next_part(owners, layer.whole)
            found = _behind(owners, ends, starts) | set(layer.told)  # long lists are cut short
            owners.named[number] = bool(layer.told)
        elif layer.reads and all(layer.reads):
            found = _behind(owners, ends, starts)
        else:
            found = set(ends) - owners.owner.keys()  # its inputs are not known
        for name in found:
            owners.own(number, name)


def _computed_inputs(owners: _Owners, nodes: Iterable[str]) -> set[str]:
    """Return the outputs of other nodes that some nodes read, without constants."""
    read = (value for name in nodes for value in owners.model.reads(name))
    produced = ((value.name or "", value.producer()) for value in read)
    is_fixed = owners.model.is_fixed
    return {name for name, node in produced if node is not None and not is_fixed(node.name or "")}


def _up_to_next_part(owners: _Owners, part: WholePart) -> list[str]:
    """Return the first nodes of a part and their dependents, up to other layers and parts."""
    others = {name for layer in owners.layers if layer.whole for name in layer.whole.first}

    def dependents(name: str) -> list[str]:
        free = (each for each in owners.model.after(name) if each not in owners.owner)
        return [each for each in free if each not in others or owners.model.is_fixed(each)]

    starts = dict.fromkeys((*part.first, *part.readers))
    return [*starts, *reached(starts, dependents)]


def _behind(owners: _Owners, ends: Iterable[str], starts: Collection[str]) -> set[str]:
    """Return free nodes and all that they need, up to tensors that are available."""

    def needed(name: str) -> list[str]:
        values = (value for value in owners.model.reads(name) if value.name not in starts)
        producers = (value.producer() for value in values)
        names = (producer.name or "" for producer in producers if producer is not None)
        return [each for each in names if each not in owners.owner]

    free = {name for name in ends if name not in owners.owner}
    return free.union(reached(free, needed))


def _take_left_over(owners: _Owners) -> None:
    """Assign nodes that no other layer executes to layers that copy or do nothing."""
    for number, layer in enumerate(owners.layers):
        if not owners.owned[number]:
            for name in layer.told:
                if name not in owners.owner and not owners.model.is_fixed(name):
                    owners.own(number, name)
                    owners.named[number] = True


def _take_by_wiring(owners: _Owners) -> None:
    """Assign free nodes to layers by their wiring."""
    for number, layer in enumerate(owners.layers):
        for name in owners.producers_of(layer.writes):
            if owners.may_take(number, name):
                owners.own(number, name)
    for number in range(len(owners.layers)):
        _take_inside(owners, number)
    for is_transparent in (False, True):  # layers that compute come first
        for number, layer in enumerate(owners.layers):
            if not owners.owned[number] and (layer.kind in TRANSPARENT) is is_transparent:
                _take_between(owners, number)


def _take_inside(owners: _Owners, number: int) -> None:
    """Assign free nodes between a layer's own: no other layer could run in between."""
    if len(owners.owned[number]) < 2:
        return
    behind = _free_from(owners, [number], owners.model.before)
    for name in behind & _free_from(owners, [number], owners.model.after) if behind else ():
        owners.own(number, name)


def _take_between(owners: _Owners, number: int) -> None:
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


def _fitting(owners: _Owners, number: int, between: list[str]) -> list[str]:
    """Return the nodes in between from the first one that fits the layer's type."""
    layer_type, kind = owners.layers[number].time.op_type, owners.layers[number].kind
    if kind in TRANSPARENT:
        return [name for name in between if owners.kind(name) is kind]
    for position, name in enumerate(between):
        if fits(layer_type, owners.index.node[name].op_type):
            return between[position:]
    return between if takes_anything(layer_type) else []


def _free_from(owners: _Owners, layers: Iterable[int], step: _Step) -> set[str]:
    """Return free nodes reachable from those of some layers; none if there are too many."""
    owned = [name for number in layers for name in owners.owned[number]]
    free = reached(owned, lambda name: filter(owners.is_free, step(name)))
    found = set(itertools.islice(free, _MOST_BETWEEN + 1))
    return found if len(found) <= _MOST_BETWEEN else set()


def _take_the_rest(owners: _Owners) -> None:
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


def _join_producer(owners: _Owners, name: str, *, whatever: bool = False) -> None:
    """Assign a fused op to the last layer that feeds it: only then are its inputs available."""
    feeding = [owners.owner[each] for each in owners.model.before(name) if each in owners.owner]
    if not feeding:
        return
    last = max(feeding)
    kept = any(tensor in owners.wires.producer for tensor in owners.model.inputs(name))
    is_dequantize = owners.index.node[name].op_type == DEQUANTIZE
    reads_ahead = is_dequantize or kept or owners.kind(name) in LEADS
    inside = all(owners.owner.get(each) in feeding for each in owners.model.after(name))
    wanted = whatever or inside or (owners.may_take(last, name) and not reads_ahead)
    if wanted and _is_place_for(owners, last, name):
        owners.own(last, name)


def _is_place_for(owners: _Owners, number: int, name: str) -> bool:
    """Whether a layer can run a node: a Concat can't run a product, for example."""
    op_type, layer_type = owners.index.node[name].op_type, owners.layers[number].time.op_type
    return kind_of(op_type) not in LEADS or fits(layer_type, op_type) or takes_anything(layer_type)


def _join_reader(owners: _Owners, name: str) -> None:
    """Assign a node that precedes a layer's nodes, or is a constant of theirs, to that layer."""
    reading = {owners.owner[each] for each in owners.model.after(name) if each in owners.owner}
    alone = len(reading) == 1 and name not in owners.model.of_shapes
    wanted = alone or (bool(reading) and name in owners.model.computed)
    if wanted and _is_place_for(owners, min(reading), name):
        owners.own(min(reading), name)


def _pull_ahead(owners: _Owners, name: str) -> None:
    """Move a node that several layers copy, and one is named after, to the first that needs it."""
    number = owners.owner.get(name)
    if number is None or not owners.is_late(number, name) or owners.kind(name) in LEADS:
        return
    if len(owners.owned[number]) > 1:
        owners.owned[number].remove(name)
        owners.own(min(owners.owner.get(each, number) for each in owners.model.after(name)), name)


class _Result:
    """The mapped layers of finished owners."""

    def __init__(self, owners: _Owners) -> None:
        self._owners = owners
        self._sublayers = [
            split(owners.model, owned) if layer.whole else [owners.model.in_order(owned)]
            for layer, owned in zip(owners.layers, owners.owned, strict=True)
        ]

    def layers(self) -> list[MappedLayer]:
        """Return them, in order of execution."""
        found = []
        for number, sublayers in enumerate(self._sublayers):
            name = self._owners.layers[number].time.name
            if not self._owners.owned[number]:
                found.append(self._mapped(number, name, *self._served(number)))
                continue
            how = NAMED if self._owners.named[number] else CLOSED
            for place, nodes in enumerate(sublayers):
                own_name = name if len(sublayers) == 1 else f"{name}#{place}"
                found.append(self._mapped(number, own_name, nodes, how))
        return found

    def _mapped(self, number: int, name: str, nodes: Sequence[str], how: str) -> MappedLayer:
        layer, index = self._owners.layers[number], self._owners.index
        return MappedLayer(
            name=name,
            op_type=layer.time.op_type,
            ms=layer.time.ms,
            precision=layer.time.precision,
            nodes=tuple(nodes),
            node_types=tuple(index.node[each].op_type for each in nodes),
            how=how,
            converts=self._converts(number) if layer.converts is None else layer.converts,
        )

    def _served(self, number: int) -> tuple[Sequence[str], str]:
        """Return the nodes that a layer serves: mentioned ones, else a consumer's or producer's."""
        owners, layer = self._owners, self._owners.layers[number]
        wires, has_nodes = owners.wires, owners.has_nodes
        told = [name for name in layer.told if name in owners.owner]
        if told:
            near = sorted({owners.owner[name] for name in told})
        elif layer.serves is not None and has_nodes(layer.serves):
            near = [layer.serves]
        else:
            near = wires.consumers(number, has_nodes) or wires.producers(number, has_nodes)[::-1]
        if not near:
            return (), UNKNOWN
        how = BETWEEN if layer.kind in TRANSPARENT else PART
        return self._sublayer(near[0], number, told or self._next_to(layer)), how

    def _next_to(self, layer: NamedLayer) -> list[str]:
        """Return the nodes that read or write the tensors of a layer."""
        index = self._owners.index
        tensors = (tensor for tensor in layer.reads if tensor in index.value)
        readers = [edge.node for tensor in tensors for edge in index.readers(tensor)]
        return readers + self._owners.producers_of(layer.writes)

    def _sublayer(self, target: int, number: int, wanted: Sequence[str]) -> list[str]:
        """Return the sublayer of a layer that has nodes of some; else the nearest one."""
        sublayers = self._sublayers[target]
        nearest = sublayers[-1 if target < number else 0]
        return next((each for each in sublayers if not set(wanted).isdisjoint(each)), nearest)

    def _converts(self, number: int) -> bool:
        """Whether a layer only converts the type of values."""
        owners, layer = self._owners, self._owners.layers[number]
        if owners.owned[number]:
            return {owners.kind(name) for name in owners.owned[number]} == {Kind.TYPE}
        if layer.time.op_type in SERVICES:
            fed = {owners.layers[each].time.precision for each in owners.wires.fed(number)}
            return not fed <= {layer.time.precision, ""}
        return layer.kind is Kind.TYPE
