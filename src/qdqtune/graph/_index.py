"""Index of a graph by name, built in one linear pass, and the unique names that it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir

from qdqtune.graph._op_classes import FLOAT_TYPES, bodies_of, dtype_of, input_at
from qdqtune.graph._weights import chunks_of
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._placement import Edge, Placement


class FreeNames:
    """Generates unused names; reusing a base needs no second search.

    Args:
        taken: Names in use.
    """

    def __init__(self, taken: Iterable[str | None]) -> None:
        self.taken = set(taken)
        self._copies: defaultdict[str, int] = defaultdict(lambda: 1)

    def new(self, base: str) -> str:
        """Return an unused name based on this one, and reserve it."""
        name = base
        while name in self.taken:
            self._copies[base] += 1
            name = f"{base}_{self._copies[base]}"
        self.taken.add(name)
        return name

    def prefix(self, base: str, suffixes: Iterable[str]) -> str:
        """Return a prefix based on this name that is unused with any suffix; reserve all."""
        prefix, copies, endings = base, 1, tuple(suffixes)
        while not self.taken.isdisjoint(prefix + ending for ending in endings):
            copies += 1
            prefix = f"{base}_{copies}"
        self.taken.update(prefix + ending for ending in endings)
        return prefix


def values_in(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the values of a graph, without those of bodies in it."""
    yield from graph.inputs
    yield from graph.initializers.values()
    yield from results_in(graph)


def results_in(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield the results of the nodes of a graph, without bodies."""
    for node in graph:
        yield from node.outputs


def value_names(model: ir.Model) -> set[str | None]:
    """Return the names of all values in the main graph and its bodies."""
    return {value.name for graph in model.graphs() for value in values_in(graph)}


def name_nodes(model: ir.Model) -> None:
    """Give every node of every graph a unique name; names that are already unique stay.

    An unnamed node is named after its op and its first output, so that the name doesn't depend on
    the number of other nodes.
    """
    names = FreeNames(())
    unnamed: list[ir.Node] = []
    for node in (node for graph in model.graphs() for node in graph):
        if node.name and node.name not in names.taken:
            names.taken.add(node.name)
        else:
            unnamed.append(node)
    for node in unnamed:
        node.name = names.new(node.name or f"{node.op_type}_{_first_output(node)}")


def name_apart_from_bodies(model: ir.Model) -> None:
    """Rename values of the main graph whose names control-flow bodies use for their own values.

    A pass that sees only the main graph may have generated such a name.
    """
    graphs = (graph for graph in model.graphs() if graph is not model.graph)
    inner = {value.name for graph in graphs for value in values_in(graph)}
    if not inner:
        return
    graph = model.graph
    own = [*graph.initializers.values(), *results_in(graph)]
    names = FreeNames(inner.union(value.name for value in (*graph.inputs, *own)))
    for value in own:
        if value.name in inner and value.name and not value.is_graph_output():
            value.name = names.new(value.name)


def _first_output(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "none")


class GraphIndex:
    """Producers, readers, constness, shapes and types of the main graph, by name.

    Control-flow bodies are not entered: their reads count as outside readers, which always see the
    original value.

    Attributes:
        model: The model that was indexed; don't change its wiring while using the index.
        nodes: The main graph's nodes in order.
        node: Node by name.
        value: Value by name: inputs, initializers and node outputs.
        position: Position of a node, by name, in `nodes`.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        graph = model.graph
        self.nodes = tuple(graph)
        self.node: dict[str, ir.Node] = {}
        self.position: dict[str, int] = {}
        self.value = {value.name: value for value in values_in(graph) if value.name}
        for position, node in enumerate(self.nodes):
            name = node.name
            if not name or name in self.node:
                raise ModelError(
                    f"Node {position} ({node.op_type}) has no name of its own.",
                    "Name the nodes uniquely first: qdqtune.graph._index.name_nodes(model).",
                )
            self.node[name] = node
            self.position[name] = position
        self._finite: dict[str, bool] = {}
        self.outputs: dict[str, list[int]] = {}
        for position, output in enumerate(graph.outputs):
            self.outputs.setdefault(output.name or "", []).append(position)

    def readers(self, tensor: str) -> tuple[Edge, ...]:
        """Return every reader of a tensor in the main graph, including the graph's own outputs."""
        graph = self.model.graph
        edges = [
            Edge(tensor, user.name or "", index)
            for user, index in self.value[tensor].uses()
            if user.graph is graph
        ]
        edges += [Edge(tensor, "", position) for position in self.outputs.get(tensor, ())]
        return tuple(edges)

    def reads(self, node: ir.Node) -> list[str]:
        """Return the tensors that a node reads, in order; omitted optional inputs are skipped."""
        return [value.name for value in node.inputs if value is not None and value.name]

    def captured(self, node: ir.Node) -> list[ir.Value]:
        """Return the values that the bodies of a node read from the main graph, each once."""
        found: dict[ir.Value, None] = {}
        waiting = [node]
        while waiting:
            for body in bodies_of(waiting.pop()):
                waiting += body
                read = [value for inner in body for value in inner.inputs if value is not None]
                values = (*read, *body.outputs)
                found.update((v, None) for v in values if self.value.get(v.name or "") is v)
        return list(found)

    def reads_constant(self, node: ir.Node) -> bool:
        """Whether a node reads a constant."""
        return any(map(self.is_constant, self.reads(node)))

    def require(self, tensor: str) -> None:
        """Make sure that the model has a tensor that a placement names.

        Raises:
            UsageError: If it has none.
        """
        if tensor not in self.value:
            raise UsageError(
                f"The placement names the tensor {tensor!r}, which the model doesn't have.",
                "Is it a placement of another model?",
            )

    def has(self, edge: Edge) -> bool:
        """Whether that reader actually reads that tensor."""
        if not edge.node:
            return edge.position in self.outputs.get(edge.tensor, ())
        node = self.node.get(edge.node)
        value = input_at(node, edge.position) if node is not None and edge.position >= 0 else None
        return value is not None and value.name == edge.tensor

    def read_by_body(self, tensor: str) -> bool:
        """Whether a control-flow body reads the tensor."""
        return any(user.graph is not self.model.graph for user, _ in self.value[tensor].uses())

    def is_constant(self, tensor: str) -> bool:
        """Whether the tensor is an initializer with a value."""
        value = self.value[tensor]
        return value.is_initializer() and value.const_value is not None

    def is_finite(self, tensor: str) -> bool:
        """Whether a constant has no NaN or infinite values."""
        if tensor not in self._finite:
            constant = self.value[tensor].const_value
            assert constant is not None
            self._finite[tensor] = all(
                np.isfinite(chunk.astype(np.float32, copy=False)).all()
                for chunk in chunks_of(constant)
            )
        return self._finite[tensor]

    def is_float(self, tensor: str) -> bool:
        """Whether the tensor holds floating-point numbers of a type that Q/DQ accepts."""
        return self.dtype(tensor) in FLOAT_TYPES

    def dtype(self, tensor: str) -> ir.DataType | None:
        """Return the element type, if known."""
        return dtype_of(self.value[tensor])

    def shape(self, tensor: str) -> tuple[int | None, ...] | None:
        """Return the shape, with None for dims that are not fixed; None if the rank is unknown."""
        value = self.value[tensor]
        shape = value.shape
        if shape is None and value.const_value is not None:
            shape = value.const_value.shape  # type: ignore[assignment]
        if shape is None:
            return None
        return tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in shape)

    def shape_read(self, node: ir.Node, position: int) -> tuple[int | None, ...] | None:
        """Return the shape of a node's input; None if there is no such input."""
        value = input_at(node, position)
        return self.shape(value.name) if value is not None and value.name else None

    def fixed_shape_read(self, node: ir.Node, position: int) -> tuple[int, ...] | None:
        """Return the shape of a node's input if all of its dims are fixed."""
        shape = self.shape_read(node, position)
        fixed = tuple(dim for dim in shape or () if dim is not None)
        return fixed if shape is not None and len(fixed) == len(shape) else None

    def effective(self, placement: Placement) -> frozenset[Edge]:
        """Return every edge that sees a quantized value: the union of edges and outputs.

        Raises:
            UsageError: If the placement names a tensor that the model doesn't have.
        """
        for tensor in placement.outputs:
            self.require(tensor)
        if not placement.outputs:
            return placement.edges
        behind = (edge for tensor in placement.outputs for edge in self.readers(tensor))
        return placement.edges.union(behind)
