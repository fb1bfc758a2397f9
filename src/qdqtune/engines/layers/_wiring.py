"""The wiring of the two graphs to match: the model's nodes and the engine's layers.

The wiring also determines how a part that was compiled as a whole is split into natural sublayers.
TensorRT may report a whole transformer as one layer, and not reveal its kernels. The sublayers are
those that a compiler usually creates: a product with the ops applied to its result, an attention, a
normalization.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import (
    COPY_OPS,
    NORM_OPS,
    POINTWISE_OPS,
    QDQ_OPS,
    WEIGHTED_OPS,
    has_body,
)
from qdqtune.records._measurement import LayerTime

# Their results depend only on shapes, which engines usually know in advance.
_OF_SHAPES = frozenset({"Shape", "Size"})
# Unknown layers form short chains, unless nothing is known at all.
_FARTHEST = 100
_T = TypeVar("_T")


class ModelWiring:
    """The wiring of a model; reads of control-flow bodies count as reads of their node.

    Args:
        index: The model.
        runs: Whether an engine is known to execute a node, whatever it depends on.

    Attributes:
        computed: Names of the nodes whose values depend on the model's inputs.
        of_shapes: Names of the other nodes, whose values depend only on shapes.
    """

    def __init__(self, index: GraphIndex, runs: Callable[[ir.Node], bool] = has_body) -> None:
        self.index = index
        self.computed: set[str] = set()
        self.of_shapes: set[str] = set()
        self._reads: dict[str, tuple[ir.Value, ...]] = {}
        self._before: dict[str, list[str]] = {}
        self._after: dict[str, list[str]] = {}
        for node in index.nodes:
            self._add(node, runs(node) or has_body(node))

    def _add(self, node: ir.Node, runs: bool) -> None:
        name = node.name or ""
        known = self.index.value
        self._reads[name] = tuple(
            value
            for value in (*node.inputs, *self.index.captured(node))
            if value is not None and known.get(value.name or "") is value
        )
        feeding = self.producers(name)
        if runs or (node.op_type not in _OF_SHAPES and any(self.inputs(name))):
            self.computed.add(name)
        elif node.op_type in _OF_SHAPES or not self.of_shapes.isdisjoint(feeding):
            self.of_shapes.add(name)
        self._before[name] = [each for each in feeding if each in self.computed]
        for each in feeding:
            self._after.setdefault(each, []).append(name)

    def reads(self, node: str) -> Sequence[ir.Value]:
        """Return the values that a node needs."""
        return self._reads[node]

    def producers(self, node: str) -> list[str]:
        """Return the nodes that write what a node reads."""
        producers = (value.producer() for value in self._reads[node])
        return list(dict.fromkeys(each.name or "" for each in producers if each is not None))

    def inputs(self, node: str) -> Iterator[str]:
        """Yield the tensors computed at run time that a node reads, including graph inputs."""
        for value in self._reads[node]:
            producer, name = value.producer(), value.name or ""
            if producer.name in self.computed if producer else not self.index.is_constant(name):
                yield name

    def before(self, node: str) -> Sequence[str]:
        """Return the nodes computed at run time that feed a node."""
        return self._before[node]

    def after(self, node: str) -> Sequence[str]:
        """Return the nodes that a node feeds."""
        return self._after.get(node, ())

    def is_fixed(self, node: str) -> bool:
        """Whether a node computes the same for all inputs of the model."""
        return node not in self.computed and node not in self.of_shapes

    def in_order(self, nodes: Iterable[str]) -> list[str]:
        """Return nodes sorted in model order."""
        return sorted(nodes, key=self.index.position.__getitem__)


class LayerWiring:
    """The wiring of an engine's layers; layers are identified by position.

    Args:
        layers: In order of execution.

    Attributes:
        producer: The layer that writes a tensor, by tensor.
    """

    def __init__(self, layers: Sequence[LayerTime]) -> None:
        self.producer = {name: i for i, layer in enumerate(layers) for name in layer.outputs}
        known = self.producer
        self._before = [
            list(dict.fromkeys(known[name] for name in layer.inputs if name in known))
            for layer in layers
        ]
        self._after: list[list[int]] = [[] for _ in layers]
        for number, before in enumerate(self._before):
            for each in before:
                self._after[each].append(number)

    def producers(self, layer: int, known: Callable[[int], bool]) -> list[int]:
        """Return the nearest layers before one that satisfy a predicate, in execution order."""
        return _nearest(layer, self._before, known)

    def consumers(self, layer: int, known: Callable[[int], bool]) -> list[int]:
        """Return the nearest layers after one that satisfy a predicate, in execution order."""
        return _nearest(layer, self._after, known)

    def fed(self, layer: int) -> Sequence[int]:
        """Return the layers that read what a layer writes."""
        return self._after[layer]


def _nearest(start: int, edges: list[list[int]], known: Callable[[int], bool]) -> list[int]:
    def step(number: int) -> Sequence[int]:
        return edges[number] if number == start or not known(number) else ()

    return sorted(filter(known, itertools.islice(reached([start], step), _FARTHEST)))


def reached(starts: Iterable[_T], step: Callable[[_T], Iterable[_T]]) -> Iterator[_T]:
    """Yield what can be reached from some nodes in one or more steps, each once."""
    waiting = list(starts)
    seen = set(waiting)
    while waiting:
        for each in step(waiting.pop()):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
                yield each


class _Role(enum.Enum):
    PRODUCT = "product"
    SOFTMAX = "softmax"
    REDUCTION = "reduction"
    NORM = "norm"
    MOVE = "move"
    TAIL = "tail"
    ALONE = "alone"


_PRODUCTS = WEIGHTED_OPS | {"Einsum", "FusedConv", "FusedMatMul", "MatMulNBits"}
_SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})
_NORMS = NORM_OPS | {
    "LRN", "LpNormalization", "MeanVarianceNormalization", "SkipSimplifiedLayerNormalization"
}  # fmt: skip
_MOVES = (
    COPY_OPS | QDQ_OPS | {"Cast", "CastLike", "Concat", "DepthToSpace", "Shape", "SpaceToDepth"}
)
_TAILS = POINTWISE_OPS | {
    "And", "BiasGelu", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "IsInf", "IsNaN",
    "Less", "LessOrEqual", "Mean", "Mod", "Not", "Or", "Round", "Sign", "Sum", "Xor",
}  # fmt: skip
_ROLES = (
    (_PRODUCTS, _Role.PRODUCT), (_SOFTMAXES, _Role.SOFTMAX), (_NORMS, _Role.NORM),
    (_MOVES, _Role.MOVE), (_TAILS, _Role.TAIL),
)  # fmt: skip
# Long chains of pointwise ops are cut at this length.
_LONGEST = 60


@dataclass
class _Sublayer:
    """A growing sublayer; `open_scores` means an attention that still lacks its second product."""

    lead: _Role
    weighted: bool = False
    open_scores: bool = False
    moves_only: bool = False
    nodes: list[str] = field(default_factory=list)


def split(wiring: ModelWiring, nodes: Collection[str]) -> list[list[str]]:
    """Splits a part of a model into sublayers.

    Inside the part, values flow only from lower-numbered to higher-numbered sublayers: none leaves
    a sublayer and returns to it.

    Args:
        wiring: The wiring of the model.
        nodes: The nodes of the part.

    Returns:
        Names of nodes by sublayer, each in the model's order; every node is in one sublayer.
    """
    depth: dict[str, int] = {}
    for name in wiring.in_order(name for name in nodes if not wiring.is_fixed(name)):
        depth[name] = max((depth.get(each, -1) for each in wiring.producers(name)), default=-1) + 1
    cutter = _Cutter(wiring, nodes)
    # Sorted by depth, so that the inputs of an attention precede it, whatever the order of nodes.
    for name in sorted(depth, key=lambda name: (depth[name], wiring.index.position[name])):
        cutter.place(name)
    cutter.send_moves_on()
    cutter.place_fixed()
    return [wiring.in_order(sublayer.nodes) for sublayer in cutter.sublayers if sublayer.nodes]


class _Cutter:
    def __init__(self, wiring: ModelWiring, nodes: Collection[str]) -> None:
        self._wiring = wiring
        self._inside = set(nodes)
        self._home: dict[str, int] = {}
        self.sublayers: list[_Sublayer] = []

    def place(self, name: str) -> None:
        """Adds a node to the last of the sublayers that feed it, or starts a new one with it."""
        node = self._wiring.index.node[name]
        homes = [self._home.get(each, -1) for each in self._wiring.producers(name)]
        last = max(homes, default=-1)
        role = _role(node)
        if last < 0 or not self._joins(self.sublayers[last], role, node):
            weighted = role is _Role.PRODUCT and self._has_weight(node)
            last = len(self.sublayers)
            self.sublayers.append(_Sublayer(role, weighted, moves_only=role is _Role.MOVE))
        sublayer = self.sublayers[last]
        sublayer.nodes.append(name)
        sublayer.moves_only &= role is _Role.MOVE
        self._home[name] = last

    def _joins(self, sublayer: _Sublayer, role: _Role, node: ir.Node) -> bool:
        if len(sublayer.nodes) >= _LONGEST:
            return False
        if role is _Role.SOFTMAX:
            sublayer.open_scores = sublayer.lead is _Role.PRODUCT and not sublayer.weighted
            return sublayer.open_scores
        if role is _Role.PRODUCT:
            joins = sublayer.open_scores and not self._has_weight(node)
            sublayer.open_scores &= not joins
            return joins
        if role is _Role.REDUCTION:
            return sublayer.lead is _Role.REDUCTION
        if role is _Role.TAIL and sublayer.moves_only:
            return False
        return role in (_Role.MOVE, _Role.TAIL)

    def _has_weight(self, node: ir.Node) -> bool:
        for value in node.inputs[:2]:
            producer = value.producer() if value is not None else None
            if producer is not None and self._wiring.is_fixed(producer.name or ""):
                return True
            if value is not None and value.name and value.is_initializer():
                return True
        return False

    def send_moves_on(self) -> None:
        """Merges sublayers that only move values into their reader, if there is just one."""
        for number in range(len(self.sublayers) - 1, -1, -1):
            sublayer = self.sublayers[number]
            homes = self._homes_of_readers(sublayer.nodes) - {number}
            if sublayer.moves_only and len(homes) == 1 and not self._leave(sublayer.nodes):
                (target,) = homes
                self.sublayers[target].nodes += sublayer.nodes
                self._home.update(dict.fromkeys(sublayer.nodes, target))
                sublayer.nodes = []

    def place_fixed(self) -> None:
        """Adds computed constants to the first sublayer that reads them."""
        for name in reversed(self._wiring.in_order(filter(self._wiring.is_fixed, self._inside))):
            number = min(self._homes_of_readers([name]), default=len(self.sublayers))
            if number == len(self.sublayers):
                self.sublayers.append(_Sublayer(_Role.MOVE))
            self.sublayers[number].nodes.append(name)
            self._home[name] = number

    def _homes_of_readers(self, names: Iterable[str]) -> set[int]:
        readers = (reader for name in names for reader in self._wiring.after(name))
        return {self._home[reader] for reader in readers if reader in self._home}

    def _leave(self, names: Collection[str]) -> bool:
        """Whether anything outside reads the outputs of these nodes."""
        index = self._wiring.index
        values = [value.name or "" for name in names for value in index.node[name].outputs]
        readers = {reader for name in names for reader in self._wiring.after(name)}
        return not readers <= self._inside or any(value in index.outputs for value in values)


def _role(node: ir.Node) -> _Role:
    if node.op_type.startswith("Reduce") or node.op_type == "CumSum":
        return _Role.REDUCTION
    return next((role for ops, role in _ROLES if node.op_type in ops), _Role.ALONE)
