"""Which tensors must share an encoding, because ops move values from one to the other."""

from __future__ import annotations

from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.units import operands, role_rule
from qdqtune.records.placement import Edge


class Kinship:
    """The tensors of a graph by what they are copies of.

    Args:
        index: The graph.
        dialect: It says which ops only move values.
        signed: Whether to look for operands that take the place of a weight.

    Attributes:
        signed: Tensors that take the place of a weight, and those that they are moved from.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, *, signed: bool = False) -> None:
        self._index = index
        self._copied_from: dict[str, Edge] = {}
        self._moves: list[tuple[tuple[Edge, ...], tuple[str, ...]]] = []
        for node in index.nodes:
            rule = role_rule(dialect, node)
            edges = tuple(operands(node, rule)) if rule.same_scale else ()
            if edges:
                outputs = tuple(output.name or "" for output in node.outputs)
                self._copied_from.update(dict.fromkeys(outputs, edges[0]))
                self._moves.append((edges, outputs))
        self._joined = [edges for edges, _ in self._moves if len(edges) > 1]
        self.signed = self._find_signed() if signed else frozenset()
        self._joins: dict[str, tuple[str, ...]] = {}
        self._joins_of: frozenset[Edge] | None = None

    def carried(self, edges: frozenset[Edge]) -> frozenset[Edge]:
        """Edges, and those that see quantized values because ops moved them there.

        Args:
            edges: An effective placement (`GraphIndex.effective`).
        """
        found = set(edges)
        for moved, outputs in self._moves:
            if found.issuperset(moved):
                found.update(edge for name in outputs for edge in self._index.readers(name))
        return frozenset(found)

    def of(self, tensor: str, wanted: frozenset[Edge]) -> tuple[str, ...]:
        """The tensors whose ranges an encoding must span, sorted; the tensor itself if it is none.

        Args:
            tensor: A tensor.
            wanted: The edges that are quantized: only through these are values moved as they are.
        """
        if self._joined and wanted is not self._joins_of:
            self._joins, self._joins_of = self._join(wanted), wanted
        source = self._source(tensor, wanted)
        return self._joins.get(source, (source,))

    def _source(self, tensor: str, wanted: frozenset[Edge]) -> str:
        while (edge := self._copied_from.get(tensor)) is not None and edge in wanted:
            tensor = edge.tensor
        return tensor

    def _join(self, wanted: frozenset[Edge]) -> dict[str, tuple[str, ...]]:
        """What meets in ops with several operands, by each of them."""
        kin: dict[str, frozenset[str]] = {}
        for edges in self._joined:
            if wanted.issuperset(edges):
                sources = {self._source(edge.tensor, wanted) for edge in edges}
                together = sources.union(*(kin.get(source, ()) for source in sources))
                kin.update(dict.fromkeys(together, frozenset(together)))
        return {source: tuple(sorted(together)) for source, together in kin.items()}

    def _find_signed(self) -> frozenset[str]:
        found: set[str] = set()
        for node in self._index.nodes:
            operand = node.inputs[1] if len(node.inputs) > 1 else None
            if operand is None or not is_op(node, *WEIGHTED_OPS):
                continue
            tensor = operand.name or ""
            if not self._index.is_constant(tensor):
                found.add(tensor)
                while (edge := self._copied_from.get(tensor)) is not None:
                    tensor = edge.tensor
                    found.add(tensor)
        return frozenset(found)
