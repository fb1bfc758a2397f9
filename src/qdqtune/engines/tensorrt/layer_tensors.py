"""Relates the tensors of TensorRT's layers to those of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from qdqtune.engines.tensorrt.layer_kinds import LayerKind
from qdqtune.engines.tensorrt.layers import Layer, LayerTensor
from qdqtune.graph.control_flow_bodies import bodies_of, has_body
from qdqtune.graph.index import GraphIndex

# Reformats follow each other once or twice.
_FARTHEST = 10


class ModelTensors:
    """The tensors of a model among those of an engine.

    Args:
        index: The model.
        layers: The engine's layers.
        kinds: Their kinds.
    """

    def __init__(
        self, index: GraphIndex, layers: Sequence[Layer], kinds: Sequence[LayerKind]
    ) -> None:
        self._index = index
        self._copied_from: dict[str, str] = {}
        self._copied_to: dict[str, str] = {}
        for layer, kind in zip(layers, kinds, strict=True):
            if kind is not LayerKind.COMPUTE and len(layer.inputs) == len(layer.outputs) == 1:
                read, written = layer.inputs[0].name, layer.outputs[0].name
                self._copied_from.setdefault(written, read)
                self._copied_to.setdefault(read, written)

    def read(self, tensor: str) -> str:
        """Return the model tensor that a layer reads, perhaps as a copy; empty if unknown."""
        return self._follow(tensor, self._copied_from)

    def written(self, tensor: str) -> str:
        """Return the model tensor that a layer's output becomes; empty if unknown."""
        return self._follow(tensor, self._copied_to)

    def _follow(self, tensor: str, copies: dict[str, str]) -> str:
        for _ in range(_FARTHEST):
            if tensor in self._index.value:
                return tensor
            if tensor not in copies:
                break
            tensor = copies[tensor]
        return ""


class NodeWiring:
    """The wiring of a model; reads of control-flow bodies count as reads of the node.

    Attributes:
        fixed: Names of nodes whose values don't depend on the model's inputs.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        self._captured: dict[str, tuple[ir.Value, ...]] = {}
        self.fixed: set[str] = set()
        for node in index.nodes:
            name = node.name or ""
            if has_body(node):
                self._captured[name] = tuple(self._captures(node))
            if all(self._is_fixed(value) for value in self.reads(node)):
                self.fixed.add(name)

    def reads(self, node: ir.Node) -> Iterator[ir.Value]:
        """Yield the values that a node needs."""
        yield from (value for value in node.inputs if value is not None)
        yield from self._captured.get(node.name or "", ())

    def producers(self, node: ir.Node) -> Iterator[ir.Node]:
        """Yield the nodes that produce them, possibly with repetitions."""
        for value in self.reads(node):
            producer = value.producer()
            if producer is not None and producer.name in self._index.node:
                yield producer

    def behind(
        self, ends: Iterable[str], starts: Collection[str], taken: Collection[str]
    ) -> set[str]:
        """Return the nodes on the way to some nodes.

        Args:
            ends: Names of the nodes to start from, included in the result.
            starts: Tensors that are already available.
            taken: Nodes that are neither passed nor included.
        """
        found: set[str] = set()
        waiting = [name for name in ends if name not in taken]
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            for value in self.reads(self._index.node[name]):
                producer = value.producer()
                if value.name in starts or producer is None or producer.name in taken:
                    continue
                if producer.name in self._index.node:
                    waiting.append(producer.name or "")
        return found

    def ahead(self, starts: Iterable[str], limits: Sequence[Collection[str]]) -> list[str]:
        """Return some nodes and their dependents, up to nodes in one of the limits."""
        found: dict[str, None] = dict.fromkeys(starts)
        waiting = list(found)
        while waiting:
            node = self._index.node[waiting.pop()]
            values = (value.name for value in node.outputs if value.name)
            edges = (edge for value in values for edge in self._index.readers(value))
            for name in (edge.node for edge in edges if edge.node):
                if name not in found and not any(name in limit for limit in limits):
                    found[name] = None
                    waiting.append(name)
        return list(found)

    def producers_of(self, tensors: Iterable[str]) -> list[str]:
        """Return names of the nodes that write tensors of the model."""
        producers = (self._index.value[tensor].producer() for tensor in tensors)
        return [node.name or "" for node in producers if node is not None]

    def _captures(self, node: ir.Node) -> Iterator[ir.Value]:
        for body in bodies_of(node):
            inner = ir.traversal.RecursiveGraphIterator(body)
            read = (value for each in inner for value in each.inputs)
            for value in (*read, *body.outputs):
                if value is not None and self._index.value.get(value.name or "") is value:
                    yield value

    def _is_fixed(self, value: ir.Value) -> bool:
        producer = value.producer()
        if producer is not None:
            return producer.name in self.fixed
        return value.is_initializer() and not value.is_graph_input()


def names(tensors: Iterable[LayerTensor]) -> tuple[str, ...]:
    """Return the engine's names of tensors."""
    return tuple(tensor.name for tensor in tensors)
