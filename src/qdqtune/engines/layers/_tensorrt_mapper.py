"""Maps the layers of a TensorRT engine to the nodes of a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import onnx_ir as ir

from qdqtune.engines.layers._tensorrt_layer_info import LayerInfo
from qdqtune.engines.layers._tensorrt_layers import Layer, LayerTensor
from qdqtune.engines.layers._tensorrt_naming import LayerKind, NodeNames, is_foreign, kind_of
from qdqtune.engines.layers._tensorrt_sublayers import split
from qdqtune.engines.layers._wiring import LayerWiring
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._preserved_parts import bodies_of, has_body
from qdqtune.records._layers import BETWEEN, CLOSED, NAMED, PART, UNKNOWN, MappedLayer
from qdqtune.records._measurement import LayerTime

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


_COPY_FOR = re.compile(r"^Reformatting CopyNode for (?P<side>Input|Output) Tensor \d+ to ")
_PRECISIONS = {
    "BFloat16": "bfloat16", "Bool": "bool", "FP4": "float4", "FP8": "float8", "Float": "float32",
    "Half": "float16", "Int32": "int32", "Int4": "int4", "Int64": "int64", "Int8": "int8",
    "UInt8": "uint8",
}  # fmt: skip


def map_layers(index: GraphIndex, info: LayerInfo) -> list[MappedLayer]:
    """Finds the nodes of every layer.

    A part of the network that was compiled as a whole (`{ForeignNode[...]}`) gives several layers,
    one per natural sublayer, numbered behind its name.

    Args:
        index: The model that the engine was built from, with its original nodes.
        info: TensorRT's information about the engine.

    Returns:
        The layers in order of execution, without times.
    """
    mapping = _Mapping(index, info)
    mapping.take_named()
    mapping.take_wired()
    mapping.take_left_over()
    return mapping.layers()


def precision_of(layer: Layer) -> str:
    """Return the type that a layer computes in, by its first operand; empty if unknown."""
    told = (_PRECISIONS.get(tensor.dtype) for tensor in (*layer.inputs, *layer.outputs))
    return next(filter(None, told), "")


class _Mapping:
    """The nodes of layers found so far; layers are identified by position."""

    def __init__(self, index: GraphIndex, info: LayerInfo) -> None:
        self._index = index
        self._info = info
        self._kinds = [kind_of(layer) for layer in info.layers]
        self._names = NodeNames(index)
        self._tensors = ModelTensors(index, info.layers, self._kinds)
        self._nodes = NodeWiring(index)
        self._wires = LayerWiring([_as_time(layer) for layer in info.layers])
        self._position: dict[str, int] = {}
        for number, layer in enumerate(info.layers):
            self._position.setdefault(layer.name, number)
        self._told = [self._told_by(layer) for layer in info.layers]
        self._taken: set[str] = set()
        self._sublayers: dict[int, list[list[str]]] = {}
        self._how: dict[int, str] = {}

    def _told_by(self, layer: Layer) -> tuple[str, ...]:
        if layer.nodes:
            told = dict.fromkeys(self._names.node(name) for name in layer.nodes)
            known = tuple(name for name in told if name)
            if known or is_foreign(layer.name):
                return known
        if is_foreign(layer.name) or _COPY_FOR.match(layer.name):
            return ()
        return self._names.nodes(layer.name)

    def take_named(self) -> None:
        """Assign nodes in names or metadata to layers that compute."""
        for number, (layer, told) in enumerate(zip(self._info.layers, self._told, strict=True)):
            kind = self._kinds[number]
            runs = kind is LayerKind.COMPUTE and not self._nodes.fixed.issuperset(told)
            if told and (runs or kind is LayerKind.QDQ) and not is_foreign(layer.name):
                self._take(number, told, NAMED)

    def take_wired(self) -> None:
        """Assign nodes between the inputs and outputs of the other layers that compute."""
        for number, layer in enumerate(self._info.layers):
            if number in self._sublayers or self._kinds[number] is not LayerKind.COMPUTE:
                continue
            if is_foreign(layer.name):
                told = set(self._told[number])  # not all of them, if there are many
                found, how = self._foreign(layer) | told, NAMED if told else CLOSED
            else:
                found, how = self._wired(layer), CLOSED
            if found:
                self._take(number, found, how)

    def take_left_over(self) -> None:
        """Assign nodes that no other layer executes to layers that copy or do nothing."""
        for number, told in enumerate(self._told):
            own = set(told) - self._taken - self._nodes.fixed
            if own and number not in self._sublayers:
                self._take(number, own, NAMED)

    def _take(self, number: int, found: Iterable[str], how: str) -> None:
        nodes = set(found)
        if is_foreign(self._info.layers[number].name):
            fixed, producers = self._nodes.fixed, self._nodes.producers
            self._sublayers[number] = split(self._index, nodes, fixed, producers)
        else:
            self._sublayers[number] = [sorted(nodes, key=self._index.position.__getitem__)]
        self._how[number] = how
        self._taken |= nodes

    def _foreign(self, layer: Layer) -> set[str]:
        """Return all nodes between the inputs and the outputs of a part, or between its ends."""
        read = [self._tensors.read(name) for name in names(layer.inputs)]
        written = [self._tensors.written(name) for name in names(layer.outputs)]
        starts, ends = set(read), self._nodes.producers_of(filter(None, written))
        if not (read and all(read) and written and all(written)):
            first, last = self._names.ends(layer.name)
            starts.update(self._needs(first))
            ends += last
            if not ends:
                first += self._names.readers_at_start(layer.name)
                ends = self._nodes.ahead(first, (self._taken, self._begun))
        return self._nodes.behind(ends, starts, self._taken)

    @cached_property
    def _begun(self) -> set[str]:
        """Return the nodes at the starts of parts that were compiled as a whole."""
        parts = (layer.name for layer in self._info.layers if is_foreign(layer.name))
        begun = {node for name in parts for node in self._names.ends(name)[0]}
        return begun - self._nodes.fixed

    def _needs(self, nodes: Iterable[str]) -> set[str]:
        """Return the computed tensors that nodes read."""
        read = (value for name in nodes for value in self._nodes.reads(self._index.node[name]))
        computed = ((value, value.producer()) for value in read)
        return {
            value.name or ""
            for value, producer in computed
            if producer is not None and producer.name not in self._nodes.fixed
        }

    def _wired(self, layer: Layer) -> set[str]:
        read = [self._tensors.read(name) for name in names(layer.inputs)]
        written = [self._tensors.written(name) for name in names(layer.outputs)]
        ends = self._nodes.producers_of(filter(None, written))
        if read and all(read):
            return self._nodes.behind(ends, set(read), self._taken)
        return set(ends) - self._taken  # where it begins is not known

    def layers(self) -> list[MappedLayer]:
        """Return the mapped layers."""
        found = []
        for number, layer in enumerate(self._info.layers):
            sublayers = self._sublayers.get(number)
            if sublayers is None:
                nodes, how = self._served(number, layer)
                found.append(self._mapped(number, layer.name, nodes, how))
                continue
            for place, nodes in enumerate(sublayers):
                name = layer.name if len(sublayers) == 1 else f"{layer.name}#{place}"
                found.append(self._mapped(number, name, nodes, self._how[number]))
        return found

    def _mapped(self, number: int, name: str, nodes: list[str], how: str) -> MappedLayer:
        layer, kind = self._info.layers[number], self._kinds[number]
        types = {tensor.dtype for tensor in (*layer.inputs, *layer.outputs)}
        return MappedLayer(
            name=name,
            op_type=layer.kind,
            ms=0.0,
            precision=precision_of(layer),
            nodes=tuple(nodes),
            node_types=tuple(self._index.node[each].op_type for each in nodes),
            how=how,
            converts=kind is LayerKind.QDQ or (kind is LayerKind.REFORMAT and len(types) > 1),
        )

    def _served(self, number: int, layer: Layer) -> tuple[list[str], str]:
        """Return the nodes that a layer serves: those named, else a consumer's or producer's."""
        how = PART if self._kinds[number] is LayerKind.COMPUTE else BETWEEN
        told = self._told[number]
        if told and not self._nodes.fixed.issuperset(told):
            return sorted(told, key=self._index.position.__getitem__), how
        copy = _COPY_FOR.match(layer.name)
        target = self._position.get(layer.name[copy.end() :]) if copy else None
        if target in self._sublayers:
            near = [target]
        else:
            near = self._wires.consumers(number, self._sublayers.__contains__)
        if near:
            return self._reading(near[0], layer, bool(copy and copy["side"] == "Output")), how
        near = sorted(self._wires.producers(number, self._sublayers.__contains__), reverse=True)
        if near:
            return self._reading(near[0], layer, True), how
        return list(told), how if told else UNKNOWN

    def _reading(self, target: int, layer: Layer, writes: bool) -> list[str]:
        """Return the sublayer that reads or writes what another layer prepares."""
        sublayers = self._sublayers[target]
        if len(sublayers) == 1:
            return sublayers[0]
        if writes:
            written = filter(None, (self._tensors.written(name) for name in names(layer.outputs)))
            wanted = set(self._nodes.producers_of(written))
        else:
            read = filter(None, (self._tensors.read(name) for name in names(layer.inputs)))
            wanted = {edge.node for tensor in read for edge in self._index.readers(tensor)}
        return next(
            (sublayer for sublayer in sublayers if not wanted.isdisjoint(sublayer)),
            sublayers[-writes],
        )


def _as_time(layer: Layer) -> LayerTime:
    return LayerTime(
        layer.name, layer.kind, 0.0, inputs=names(layer.inputs), outputs=names(layer.outputs)
    )
