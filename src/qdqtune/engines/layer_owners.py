"""Maps nodes to the layers that execute them, as far as the engine's names say so."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from qdqtune.engines.layer_kinds import SERVICES, TRANSPARENT, Kind, fits, kind_of
from qdqtune.engines.layer_names import COPY, EXACT, nodes_named
from qdqtune.engines.layer_wiring import LayerWiring, ModelWiring
from qdqtune.graph.index import GraphIndex
from qdqtune.records.measurement import LayerTime


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
