"""The patterns of a model: their regions, and the edges that schemes quantize in a dialect."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.records._placement import Edge
from qdqtune.search._errors import InvalidSchemeError
from qdqtune.search.patterns._insertion_points import (
    InsertionPoint,
    ResolvedInsertionPoint,
    points_in,
    to_placement,
)
from qdqtune.search.patterns._region_pattern import (
    InsertionScheme,
    RegionPattern,
    group_regions,
    scheme_in,
)
from qdqtune.search.regions._canonical import CanonicalRegion
from qdqtune.search.regions._region import Region

_log = logging.getLogger(__name__)


class EdgeClosure:
    """What insertion points come to in one model and one dialect.

    A reader that has a point becomes an integer kernel, with all that the dialect needs for it; so
    does a weighted op that reads a tensor with a point. A point that the dialect can make no use of
    comes to nothing. The closure of a union is the union of the closures.

    Args:
        index: The graph.
        dialect: The dialect.
        quant_type: One of the dialect's quant types.

    Attributes:
        planner: What each op needs to be quantized.
        quant_type: The quant type.
    """

    def __init__(self, index: GraphIndex, dialect: Dialect, quant_type: str) -> None:
        self.quant_type = quant_type
        self.planner = QuantizationPlanner(index, dialect, quant_type)
        self._index = index
        self._kernels = {
            name: index.effective(places) for name, places in self.planner.units.items()
        }

    @property
    def why_nothing(self) -> str:
        """What keeps most ops from being quantized; empty if one can be."""
        if self._kernels:
            return ""
        dialect, left_float = self.planner.dialect, self.planner.left_float
        known = {
            name: reason
            for name, reason in left_float.items()
            if self._index.node[name].op_type in dialect.rules
        }
        reasons = Counter((known or left_float).values()).most_common(1)
        return reasons[0][0] if reasons else f"{dialect.name} has no integer kernel for it"

    def kernels(self, names: Iterable[str]) -> frozenset[Edge]:
        """The edges that make ops integer kernels; ops that can't be come to none."""
        return frozenset[Edge]().union(*(self._kernels.get(name, ()) for name in names))

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
                found |= self._kernels[edge.node]
        for tensor in filter(self._is_useful, asked.outputs):
            for edge in self._index.readers(tensor):
                found.add(edge)
                if self._is_weighted_kernel(edge.node):
                    found |= self._kernels[edge.node]
        return frozenset(found)

    def _is_weighted_kernel(self, name: str) -> bool:
        """Whether an op is quantized whole or not at all: it gains nothing from one operand."""
        return name in self._kernels and is_op(self._index.node[name], *WEIGHTED_OPS)

    def _is_useful(self, tensor: str) -> bool:
        """Whether an integer kernel makes or reads a tensor, perhaps through an activation."""
        producer = self._index.value[tensor].producer()
        if producer is not None and producer.op_type in self.planner.dialect.fused_activations:
            first = producer.inputs[0]
            producer = first.producer() if first is not None else None
        made = producer is not None and producer.name in self._kernels
        return made or any(edge.node in self._kernels for edge in self._index.readers(tensor))


class TunedPattern:
    """One structure with shapes, wherever it stands in a model.

    Args:
        forms: The regions of the pattern.
        index: The graph.
        closure: What places come to in the dialect.

    Attributes:
        pattern: The structure with shapes.
        plain: The structure alone.
    """

    def __init__(
        self, forms: Sequence[CanonicalRegion], index: GraphIndex, closure: EdgeClosure
    ) -> None:
        self.pattern = RegionPattern.of_form(forms[0], shapes=True)
        self.plain = RegionPattern.of_form(forms[0], shapes=False)
        self._forms = forms
        self._index = index
        self._closure = closure
        self._edges: dict[frozenset[InsertionPoint], frozenset[Edge]] = {}

    @property
    def nodes(self) -> set[str]:
        """Names of the nodes in all its regions."""
        nodes = self._index.nodes
        return {nodes[position].name or "" for form in self._forms for position in form.nodes}

    @cached_property
    def points(self) -> tuple[InsertionPoint, ...]:
        """Every point that changes anything in one of the regions."""
        found = dict.fromkeys(p for form in self._forms for p in points_in(form, self._index))
        return tuple(point for point in found if self.edges(InsertionScheme.of([point])))

    def resolved(self, scheme: InsertionScheme) -> set[ResolvedInsertionPoint]:
        """The places that a scheme stands for, in all regions of the pattern.

        Raises:
            InvalidSchemeError: If the pattern has no such points.
        """
        return {
            place
            for form in self._forms
            for point in scheme.points()
            for place in point.resolve_in(form, self._index)
        }

    def quantized(self, scheme: InsertionScheme) -> set[ResolvedInsertionPoint]:
        """Of the places that a scheme stands for, those that come to something in the dialect.

        Raises:
            InvalidSchemeError: If the pattern has no such points.
        """
        return {place for place in self.resolved(scheme) if self._closure.edges([place])}

    def edges(self, scheme: InsertionScheme) -> frozenset[Edge]:
        """The edges that see a quantized value because of a scheme.

        Raises:
            InvalidSchemeError: If the pattern has no such points.
        """
        key = frozenset(scheme.points())
        if key not in self._edges:
            self._edges[key] = self._closure.edges(self.resolved(scheme))
        return self._edges[key]

    def fits(self, scheme: InsertionScheme) -> bool:
        """Whether this pattern has all points of a scheme."""
        try:
            self.edges(scheme)
        except InvalidSchemeError:
            return False
        return True

    def fitting(self, schemes: Iterable[InsertionScheme]) -> list[InsertionScheme]:
        """The schemes whose points this pattern has; the others are left out with a warning."""
        found = []
        for scheme in schemes:
            try:
                self.edges(scheme)
            except InvalidSchemeError as error:
                name = self.pattern.get_short_signature()
                _log.warning("a scheme for %s is left out: %s", name, error.what)
            else:
                found.append(scheme)
        return found

    def from_tensors(self, tensors: Collection[str]) -> list[InsertionScheme]:
        """Schemes that quantize these tensors, one for each way in which regions name them."""
        named = (scheme_in(form, self._index, tensors) for form in self._forms)
        return list({scheme.hash: scheme for scheme in named if not scheme.is_empty}.values())


def patterns_of(
    regions: Iterable[Region], index: GraphIndex, closure: EdgeClosure
) -> dict[Region, TunedPattern]:
    """The pattern of each region; regions with the same structure and shapes share one.

    Raises:
        AutotunerError: If a region doesn't fit the graph.
    """
    listed = list(regions)
    found: dict[Region, TunedPattern] = {}
    for forms in group_regions(listed, index):
        tuned = TunedPattern(forms, index, closure)
        found.update((form.region, tuned) for form in forms)
    return {region: found[region] for region in listed}
