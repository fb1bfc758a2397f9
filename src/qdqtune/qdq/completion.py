"""From a set of ops to the one placement that makes each of them an integer kernel.

A search asks this thousands of times for one graph, so that what each op needs is found once.
"""

from __future__ import annotations

from collections.abc import Collection

from qdqtune.graph.index import GraphIndex
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.units import canonical, role_rule, rule_of, unit, why_not
from qdqtune.records.placement import Edge, Placement


class Completion:
    """Which ops of a graph a dialect can quantize, and what any set of them needs.

    Ops that only move values (`moving`) are quantized where what they move already is; all others
    that can be (`working`) whenever they are asked for.

    Args:
        index: The graph.
        dialect: Whose kernels.
        quant_type: One of the dialect's quant types.

    Attributes:
        working: Names of ops with an integer kernel, in the graph's order.
        moving: Names of ops that follow, in the graph's order.
        units: What each of both needs.
        left_float: Node name to the reason why it can't be quantized.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, quant_type: str = "int8") -> None:
        self.index = index
        self.dialect = dialect
        self.working: dict[str, Placement] = {}
        self.moving: dict[str, Placement] = {}
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
            kind = self.moving if role_rule(dialect, node).same_scale else self.working
            kind[name] = places
        self.units = {**self.working, **self.moving}

    def placement(self, names: Collection[str]) -> Placement:
        """The places that quantize these ops, in canonical form.

        Args:
            names: Ops of `working` and `moving`; others count for nothing.
        """
        wanted = frozenset(names)
        edges: set[Edge] = set()
        outputs: set[str] = set()
        for name, places in self.working.items():
            if name in wanted:
                edges |= places.edges
                outputs |= places.outputs
        quantized = {edge.tensor for edge in edges} | outputs
        for name, places in self.moving.items():
            value = self.index.node[name].inputs[0]
            source = value.name or "" if value is not None else ""
            if name in wanted and (source in quantized or self.index.is_constant(source)):
                edges |= places.edges
                outputs |= places.outputs
                quantized |= places.outputs
        if self.dialect.lifts:
            for name, places in reversed(self.moving.items()):
                if name in wanted and not quantized.isdisjoint(places.outputs):
                    edges |= places.edges
                    outputs |= places.outputs
                    quantized |= places.tensors
        return canonical(self.index, Placement(frozenset(edges), frozenset(outputs)))
