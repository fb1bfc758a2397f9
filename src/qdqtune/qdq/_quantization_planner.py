"""From a set of ops to the one placement that makes each of them an integer kernel.

Also the tensors that share an encoding in it, because ops only move values between them.
"""

from __future__ import annotations

from collections.abc import Collection

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._op_units import (
    canonical,
    merge,
    operands,
    passes_values_through,
    role_rule,
    rule_of,
    unit,
    why_not,
)
from qdqtune.records._placement import Edge, Placement

_NOTHING = Placement()


class SharedEncodings:
    """The tensors of a graph by what they are copies of.

    Args:
        index: The graph.
        dialect: It says which ops only move values.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect) -> None:
        self._index = index
        moving = (node for node in index.nodes if passes_values_through(index, dialect, node))
        self._moves = [
            (edges, [output.name or "" for output in node.outputs])
            for node in moving
            if (edges := tuple(operands(node, role_rule(dialect, node))))
        ]
        self._copied_from = {name: edges[0] for edges, names in self._moves for name in names}
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


class QuantizationPlanner:
    """Which ops of a graph a dialect can quantize, and what any set of them needs.

    Ops that only move values (`moving`) are quantized where what they move already is; all others
    that can be (`working`) whenever they are asked for.

    Args:
        index: The graph.
        dialect: Whose kernels.
        quant_type: One of the dialect's quant types.

    Attributes:
        compute: Names of ops with an integer kernel, in the graph's order.
        passthrough: Names of ops that follow, in the graph's order.
        units: What each of both needs.
        left_float: Node name to the reason why it can't be quantized.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, quant_type: str = "int8") -> None:
        self.index = index
        self.dialect = dialect
        self.compute: dict[str, Placement] = {}
        self.passthrough: dict[str, Placement] = {}
        self.left_float: dict[str, str] = {}
        for node in index.nodes:
            name = node.name or ""
            if node.op_type in dialect.fused_activations and rule_of(dialect, node) is None:
                continue  # part of the op before it
            reason = why_not(index, dialect, node, quant_type)
            if reason:
                self.left_float[name] = reason
                continue
            places = unit(index, dialect, node, whole=True)
            kind = self.passthrough if role_rule(dialect, node).same_scale else self.compute
            kind[name] = places
        self.units = {**self.compute, **self.passthrough}
        self._shared = SharedEncodings(index, dialect)

    def placement(
        self,
        names: Collection[str],
        weights_only: Collection[str] = (),
        quantized_before: Collection[str] = (),
        float_weights: Collection[str] = (),
    ) -> Placement:
        """The places that quantize these ops, in canonical form.

        Args:
            names: Ops of `working` and `moving`; others count for nothing.
            weights_only: Ops of which only the weights are quantized.
            quantized_before: Tensors that are taken to be quantized by who makes them: ops that
                only move values follow.
            float_weights: Ops among them whose weights are left float, for the engine to quantize.
        """
        wanted = frozenset(names)
        whole = merge(places for name, places in self.compute.items() if name in wanted)
        edges, outputs = set(whole.edges), set(whole.outputs)
        for name in float_weights:
            edges -= self._own_constants(name)
        quantized = {edge.tensor for edge in edges} | outputs | set(quantized_before)
        for name, places in self.passthrough.items():
            if name in wanted and any(
                edge.tensor in quantized or self.index.is_constant(edge.tensor)
                for edge in places.edges
            ):
                edges |= places.edges
                outputs |= places.outputs
                quantized |= places.outputs
        if self.dialect.propagates_dq:
            self._propagate_dq(wanted, edges, outputs)
        edges.update(edge for name in weights_only for edge in self.weight_edges(name))
        return canonical(self.index, Placement(frozenset(edges), frozenset(outputs)))

    @property
    def candidate_edges(self) -> Placement:
        """Every place that a choice can come to; moved pairs stand elsewhere in each of them."""
        whole = self.placement(self.units)
        return merge([whole, *self.units.values()]) if self.dialect.propagates_dq else whole

    def quantized(self, placement: Placement) -> frozenset[str]:
        """Names of the ops that are integer kernels in a placement.

        Where pairs stand before passthrough ops only, what reads their results counts as well.
        """
        edges = self.index.effective(placement)
        if self.dialect.propagates_dq:
            edges = self.propagated(edges)
        return frozenset(name for name, places in self.units.items() if places.edges <= edges)

    def stored(self, placement: Placement) -> frozenset[str]:
        """Names of the ops whose weights are quantized in a placement, whatever else is."""
        edges = self.index.effective(placement)
        return frozenset(n for n in self.compute if (own := self.weight_edges(n)) and own <= edges)

    def fed(self, placement: Placement) -> frozenset[str]:
        """Names of the ops that read and write quantized values, whatever their weights are."""
        edges = self.index.effective(placement)
        return frozenset(
            name
            for name, places in self.units.items()
            if places.edges - self._own_constants(name) <= edges
        )

    def _own_constants(self, name: str) -> frozenset[Edge]:
        """Where an op that has a weight reads constants: that, and a bias."""
        if not self.weight_edges(name):
            return frozenset()
        edges = self.compute[name].edges
        return frozenset(e for e in edges if e.node == name and self.index.is_constant(e.tensor))

    def weight_edges(self, name: str) -> frozenset[Edge]:
        """Where an op reads its weight, if that is a constant."""
        weight = role_rule(self.dialect, self.index.node[name]).weight
        return frozenset(
            edge
            for edge in self.compute.get(name, _NOTHING).edges
            if edge.node == name and edge.position == weight and self.index.is_constant(edge.tensor)
        )

    def propagated(self, edges: frozenset[Edge]) -> frozenset[Edge]:
        """Edges, and those that see quantized values because ops moved them there."""
        return self._shared.propagated(edges)

    def _propagate_dq(self, wanted: frozenset[str], edges: set[Edge], outputs: set[str]) -> None:
        """Put pairs before passthrough ops, not behind them."""
        quantized = {edge.tensor for edge in edges} | outputs
        for name, places in reversed(self.passthrough.items()):
            if name in wanted and not quantized.isdisjoint(places.outputs):
                edges |= places.edges
                quantized |= places.tensors
        moved: set[str] = set()
        for name, places in self.passthrough.items():
            if name in wanted and places.edges <= edges:
                moved |= places.outputs
        edges.difference_update([edge for edge in edges if edge.tensor in moved])
        outputs -= moved
