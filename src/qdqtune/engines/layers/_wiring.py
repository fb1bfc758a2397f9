"""The wiring of the two graphs to match: the model's nodes and the engine's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import onnx_ir as ir

from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import LayerTime

# Their results depend only on shapes, which engines usually know in advance.
_OF_SHAPES = frozenset({"Shape", "Size"})
# Unknown layers come in short chains, or nothing is known at all.
_FARTHEST = 100


class ModelWiring:
    """The wiring of a model, restricted to values that are computed at run time.

    Args:
        index: The model.
        runs: Whether an engine is known to execute a node, by name.

    Attributes:
        computed: Names of the nodes whose values are not known before a run.
        of_shapes: Names of the other nodes that are known once shapes are.
    """

    def __init__(self, index: GraphIndex, runs: Callable[[ir.Node], bool]) -> None:
        self.index = index
        self.computed: set[str] = set()
        self.of_shapes: set[str] = set()
        self._before: dict[str, tuple[str, ...]] = {}
        self._after: dict[str, list[str]] = {}
        for node in index.nodes:
            self._add(node, runs(node) or _has_bodies(node))

    def _add(self, node: ir.Node, runs: bool) -> None:
        name = node.name or ""
        producers = [value.producer() for value in node.inputs if value is not None]
        feeding = dict.fromkeys(each.name or "" for each in producers if each is not None)
        if runs or (node.op_type not in _OF_SHAPES and any(self.inputs(name))):
            self.computed.add(name)
        elif node.op_type in _OF_SHAPES or not self.of_shapes.isdisjoint(feeding):
            self.of_shapes.add(name)
        self._before[name] = tuple(each for each in feeding if each in self.computed)
        for each in feeding:
            self._after.setdefault(each, []).append(name)

    def inputs(self, node: str) -> Iterator[str]:
        """Yield the tensors computed at run time that a node reads, including graph inputs."""
        for value in self.index.node[node].inputs:
            if value is None or value.name not in self.index.value:
                continue
            producer = value.producer()
            if (
                producer.name in self.computed
                if producer
                else not self.index.is_constant(value.name)
            ):
                yield value.name

    def before(self, node: str) -> Sequence[str]:
        """Return the nodes computed at run time that feed a node."""
        return self._before[node]

    def after(self, node: str) -> Sequence[str]:
        """Return the nodes that a node feeds."""
        return self._after.get(node, ())

    def in_order(self, nodes: Iterable[str]) -> list[str]:
        """Return nodes sorted in model order."""
        return sorted(nodes, key=self.index.position.__getitem__)


class LayerWiring:
    """The wiring of an engine's layers; layers are identified by position.

    Args:
        layers: In order of execution.

    Attributes:
        written: Every tensor that a layer writes.
    """

    def __init__(self, layers: Sequence[LayerTime]) -> None:
        self._layers = layers
        producer = {tensor: i for i, layer in enumerate(layers) for tensor in layer.outputs}
        self.written = producer.keys()
        self._before = [
            list(dict.fromkeys(producer[tensor] for tensor in layer.inputs if tensor in producer))
            for layer in layers
        ]
        self._after: list[list[int]] = [[] for _ in layers]
        for number, before in enumerate(self._before):
            for each in before:
                self._after[each].append(number)

    def producers(self, layer: int, known: Callable[[int], bool]) -> list[int]:
        """Return the nearest layers before one that satisfy a predicate."""
        return _nearest(layer, self._before, known)

    def consumers(self, layer: int, known: Callable[[int], bool]) -> list[int]:
        """Return the nearest layers after one that satisfy a predicate, in execution order."""
        return sorted(_nearest(layer, self._after, known))

    def feeding(self, layer: int) -> Sequence[int]:
        """Return the layers that write what a layer reads."""
        return self._before[layer]

    def fed(self, layer: int) -> Sequence[int]:
        """Return the layers that read what a layer writes."""
        return self._after[layer]


def _nearest(start: int, edges: list[list[int]], known: Callable[[int], bool]) -> list[int]:
    found: list[int] = []
    seen = {start}
    waiting = list(edges[start])
    while waiting and len(seen) <= _FARTHEST:
        number = waiting.pop()
        if number in seen:
            continue
        seen.add(number)
        if known(number):
            found.append(number)
        else:
            waiting.extend(edges[number])
    return found


def _has_bodies(node: ir.Node) -> bool:
    return any(
        each.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for each in node.attributes.values()
    )
