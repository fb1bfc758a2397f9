"""A pattern in one model: its regions there, and what a scheme comes to in all of them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import cached_property

from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.autotune.patterns.insertion_points import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.autotune.patterns.region_pattern import RegionPattern
from qdqtune.autotune.patterns.resolved import ResolvedInsertionPoint
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.patterns.tensor_seeds import scheme_in
from qdqtune.autotune.regions.canonical import CanonicalRegion, canonical_region
from qdqtune.autotune.regions.region import Region
from qdqtune.autotune.session.edge_closure import EdgeClosure
from qdqtune.graph.index import GraphIndex
from qdqtune.records.placement import Edge

_log = logging.getLogger(__name__)


class TunedPattern:
    """One structure with shapes, wherever it stands in a model.

    Args:
        pattern: The structure with shapes.
        plain: The structure alone.
        index: The graph.
        closure: What places come to in the dialect.

    Attributes:
        pattern: The structure with shapes.
        plain: The structure alone.
    """

    def __init__(
        self,
        pattern: RegionPattern,
        plain: RegionPattern,
        index: GraphIndex,
        closure: EdgeClosure,
    ) -> None:
        self.pattern = pattern
        self.plain = plain
        self._index = index
        self._closure = closure
        self._forms: list[CanonicalRegion] = []
        self._edges: dict[frozenset[InsertionPoint], frozenset[Edge]] = {}

    def add(self, form: CanonicalRegion) -> None:
        """Take in another region of the pattern."""
        self._forms.append(form)

    @cached_property
    def points(self) -> tuple[InsertionPoint, ...]:
        """Every point that changes anything in one of the regions."""
        found: dict[InsertionPoint, None] = {}
        for form in self._forms:
            for kind in (
                NodeInputInsertionPoint,
                ChildRegionInputInsertionPoint,
                RegionOutputInsertionPoint,
            ):
                found.update(dict.fromkeys(kind.collect_in(form, self._index)))
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
    known: dict[str, TunedPattern] = {}
    found: dict[Region, TunedPattern] = {}
    for region in regions:
        form = canonical_region(region, index)
        signature, size = form.signature(shapes=True), len(form.nodes)
        if signature not in known:
            known[signature] = TunedPattern(
                RegionPattern(signature, size),
                RegionPattern(form.signature(), size),
                index,
                closure,
            )
        known[signature].add(form)
        found[region] = known[signature]
    return found
