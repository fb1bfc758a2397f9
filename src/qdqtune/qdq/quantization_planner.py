"""From a set of ops to the one placement that makes each of them an integer kernel.

A search asks this thousands of times for one graph, so that what each op needs is found once.
"""

from __future__ import annotations

from collections.abc import Collection

from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.op_units import canonical, merge, role_rule, rule_of, unit, why_not
from qdqtune.qdq.shared_encodings import SharedEncodings
from qdqtune.records.placement import Edge, Placement

_NOTHING = Placement()


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
        edges: set[Edge] = set()
        outputs: set[str] = set()
        for name, places in self.compute.items():
            if name in wanted:
                edges |= places.edges
                outputs |= places.outputs
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
        found = {name: self.weight_edges(name) for name in self.compute}
        return frozenset(name for name, own in found.items() if own and own <= edges)

    def fed(self, placement: Placement) -> frozenset[str]:
        """Names of the ops that read and write quantized values, whatever their weights are."""
        edges = self.index.effective(placement)
        return frozenset(
            name
            for name, places in self.compute.items()
            if places.edges - self._own_constants(name) <= edges
        ) | frozenset(name for name, places in self.passthrough.items() if places.edges <= edges)

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
