"""The wiring of the two graphs to match: the model's nodes and the engine's layers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import has_body
from qdqtune.records._measurement import LayerTime

# Their results depend only on shapes, which engines usually know in advance.
_OF_SHAPES = frozenset({"Shape", "Size"})
# Unknown layers come in short chains, or nothing is known at all.
_FARTHEST = 100
_T = TypeVar("_T")


class ModelWiring:
    """The wiring of a model; reads of control-flow bodies count as reads of their node.

    Args:
        index: The model.
        runs: Whether an engine is known to execute a node, whatever it depends on.

    Attributes:
        computed: Names of the nodes whose values are not known before a run.
        of_shapes: Names of the other nodes that are known once shapes are.
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

    def feeding(self, layer: int) -> Sequence[int]:
        """Return the layers that write what a layer reads."""
        return self._before[layer]

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
