"""From insertion points, which know no engine, to the edges that one dialect makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from qdqtune.autotune.patterns.resolved import ResolvedInsertionPoint, to_placement
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.op_units import unit
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.placement import Edge, Placement


class EdgeClosure:
    """What insertion points come to in one model and one dialect.

    A reader that has a point becomes an integer kernel, with all that the dialect needs for it; so
    does a weighted op that reads a tensor with a point. A point that the dialect can make no use of
    comes to nothing. The closure of a union is the union of the closures.

    Args:
        index: The graph.
        dialect: The dialect.
        quant_type: One of the dialect's quant types.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, quant_type: str) -> None:
        self._index = index
        self._dialect = dialect
        planner = QuantizationPlanner(index, dialect, quant_type)
        self._kernels = planner.units
        self._left_float = planner.left_float
        self._units: dict[str, frozenset[Edge]] = {}

    @property
    def why_nothing(self) -> str:
        """What keeps most ops from being quantized; empty if one can be."""
        if self._kernels:
            return ""
        known = {
            name: reason
            for name, reason in self._left_float.items()
            if self._index.node[name].op_type in self._dialect.rules
        }
        reasons = Counter((known or self._left_float).values()).most_common(1)
        return reasons[0][0] if reasons else f"{self._dialect.name} has no integer kernel for it"

    def edges(self, resolved: Iterable[ResolvedInsertionPoint]) -> frozenset[Edge]:
        """Every edge that sees a quantized value because of these places.

        Raises:
            InvalidSchemeError: If the model has no such place.
        """
        asked = to_placement(self._index, resolved)
        found: set[Edge] = set()
        for edge in asked.edges:
            if edge.node in self._kernels:
                found.add(edge)
                found |= self._unit(edge.node)
        for tensor in filter(self._is_useful, asked.outputs):
            for edge in self._index.readers(tensor):
                found.add(edge)
                if self._is_weighted_kernel(edge.node):
                    found |= self._unit(edge.node)
        return frozenset(found)

    def _unit(self, name: str) -> frozenset[Edge]:
        if name not in self._units:
            places: Placement = unit(self._index, self._dialect, self._index.node[name], whole=True)
            self._units[name] = self._index.effective(places)
        return self._units[name]

    def _is_weighted_kernel(self, name: str) -> bool:
        """Whether an op is quantized whole or not at all: it gains nothing from one operand."""
        return name in self._kernels and is_op(self._index.node[name], *WEIGHTED_OPS)

    def _is_useful(self, tensor: str) -> bool:
        """Whether an integer kernel makes or reads a tensor, perhaps through an activation."""
        producer = self._index.value[tensor].producer()
        if producer is not None and producer.op_type in self._dialect.fused_activations:
            first = producer.inputs[0]
            producer = first.producer() if first is not None else None
        made = producer is not None and producer.name in self._kernels
        return made or any(edge.node in self._kernels for edge in self._index.readers(tensor))
