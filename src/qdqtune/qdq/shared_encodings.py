"""Tensors that must share an encoding because an op passes values through unchanged."""

from __future__ import annotations

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.op_units import operands, passes_values_through, role_rule
from qdqtune.records.placement import Edge


class SharedEncodings:
    """The tensors of a graph by what they are copies of.

    Args:
        index: The graph.
        dialect: It says which ops only move values.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect) -> None:
        self._index = index
        self._copied_from: dict[str, Edge] = {}
        self._moves: list[tuple[tuple[Edge, ...], tuple[str, ...]]] = []
        for node in index.nodes:
            if not passes_values_through(index, dialect, node):
                continue
            edges = tuple(operands(node, role_rule(dialect, node)))
            if edges:
                outputs = tuple(output.name or "" for output in node.outputs)
                self._copied_from.update(dict.fromkeys(outputs, edges[0]))
                self._moves.append((edges, outputs))
        self._joined = [edges for edges, _ in self._moves if len(edges) > 1]
        self._multiplied = [
            Edge(value.name or "", node.name or "", 1)
            for node in index.nodes
            if is_op(node, *WEIGHTED_OPS)
            for value in node.inputs[1:2]
            if value is not None and not index.is_constant(value.name or "")
        ]

    def propagated(self, edges: frozenset[Edge]) -> frozenset[Edge]:
        """Edges, and those that see quantized values because ops moved them there.

        Args:
            edges: An effective placement (`GraphIndex.effective`).
        """
        found = set(edges)
        for moved, outputs in self._moves:
            if found.issuperset(moved):
                found.update(edge for name in outputs for edge in self._index.readers(name))
        return frozenset(found)

    def among(self, wanted: frozenset[Edge]) -> Siblings:
        """Which tensors share an encoding if these edges are quantized."""
        return Siblings(self, wanted)

    def source(self, tensor: str, wanted: frozenset[Edge]) -> str:
        """What a tensor is a copy of, by way of these edges."""
        while (edge := self._copied_from.get(tensor)) is not None and edge in wanted:
            tensor = edge.tensor
        return tensor

    def joined(self, wanted: frozenset[Edge]) -> dict[str, tuple[str, ...]]:
        """What meets in ops with several operands, sorted, by each of them."""
        siblings: dict[str, frozenset[str]] = {}
        for edges in self._joined:
            if wanted.issuperset(edges):
                sources = {self.source(edge.tensor, wanted) for edge in edges}
                together = sources.union(*(siblings.get(source, ()) for source in sources))
                siblings.update(dict.fromkeys(together, frozenset(together)))
        return {source: tuple(sorted(together)) for source, together in siblings.items()}

    def multiplied(self, wanted: frozenset[Edge]) -> frozenset[str]:
        """Activations in the place of a weight."""
        edges = (edge for edge in self._multiplied if edge in wanted)
        return frozenset(self.source(edge.tensor, wanted) for edge in edges)


class Siblings:
    """Which tensors share an encoding in one placement.

    Args:
        shared: The graph's.
        wanted: The edges that see quantized values.
    """

    def __init__(self, shared: SharedEncodings, wanted: frozenset[Edge]) -> None:
        self._shared = shared
        self._joined = shared.joined(wanted)
        self._multiplied = shared.multiplied(wanted)
        self.wanted = wanted

    def of(self, tensor: str) -> tuple[str, ...]:
        """The tensors whose ranges one encoding must span, sorted."""
        source = self._shared.source(tensor, self.wanted)
        return self._joined.get(source, (source,))

    def is_multiplied(self, siblings: tuple[str, ...]) -> bool:
        """Whether one of these takes the place of a weight."""
        return not self._multiplied.isdisjoint(siblings)
