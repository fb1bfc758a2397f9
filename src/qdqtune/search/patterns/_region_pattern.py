"""Patterns: the structure of a region, independent of names, and as it occurs in one model."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.records._placement import Edge
from qdqtune.search._errors import InvalidSchemeError
from qdqtune.search.patterns._insertion_points import (
    InsertionPoint,
    RegionOutputInsertionPoint,
    ResolvedInsertionPoint,
    points_in,
    to_placement,
)
from qdqtune.search.patterns._scheme import InsertionScheme
from qdqtune.search.regions._canonical import (
    COMPOSITE_PREFIX,
    CanonicalRegion,
    canonical_region,
    without_shapes,
)
from qdqtune.search.regions._region import Region

_HASH_DIGITS = 32


class RegionPattern:
    """The structure of a region, as text; patterns are equal if their texts are.

    Args:
        signature: The text.
        size: Number of nodes in a region of the pattern.
    """

    def __init__(self, signature: str, size: int) -> None:
        self.signature = signature
        self.size = size

    @classmethod
    def from_region(
        cls, region: Region, graph: GraphIndex, *, shapes: bool = False
    ) -> RegionPattern:
        """Compute the pattern of a region.

        Args:
            region: The region.
            graph: The graph.
            shapes: Whether to include the types and shapes of all tensors.
        """
        form = canonical_region(region, graph)
        return cls(form.signature(shapes=shapes), len(form.nodes))

    @property
    def structure(self) -> RegionPattern:
        """The pattern without types and shapes; the pattern itself if it has none."""
        return RegionPattern(without_shapes(self.signature), self.size)

    @property
    def is_empty(self) -> bool:
        """Whether it has no nodes."""
        return self.size == 0

    @property
    def is_composite(self) -> bool:
        """Whether regions of it have children."""
        return self.signature.startswith(COMPOSITE_PREFIX)

    @property
    def is_leaf(self) -> bool:
        """Whether regions of it have no children."""
        return not self.is_composite

    def get_hash(self) -> str:
        """Return a hash of the signature, 32 hex digits."""
        return hashlib.sha256(self.signature.encode()).hexdigest()[:_HASH_DIGITS]

    def get_short_signature(self, max_length: int = 80) -> str:
        """Return the signature, truncated if too long."""
        if len(self.signature) <= max_length:
            return self.signature
        return self.signature[: max(max_length - 3, 0)] + "..."

    @overload
    def matches(self, other: RegionPattern) -> bool: ...

    @overload
    def matches(self, other: Region, graph: GraphIndex) -> list[int] | None: ...

    @overload
    def matches(
        self, other: Region, graph: GraphIndex, scheme: InsertionScheme
    ) -> set[ResolvedInsertionPoint]: ...

    def matches(
        self,
        other: RegionPattern | Region,
        graph: GraphIndex | None = None,
        scheme: InsertionScheme | None = None,
    ) -> bool | list[int] | set[ResolvedInsertionPoint] | None:
        """Compare with a pattern or a region, or resolve a scheme in a region.

        Args:
            other: The pattern or the region.
            graph: The graph that the region is in.
            scheme: A scheme of this pattern.

        Returns:
            For a pattern, whether it is equal. For a region, its nodes in canonical order, or None
            if its pattern differs. With a scheme, its insertion points in the region; empty if its
            pattern differs.

        Raises:
            InvalidSchemeError: If the graph is missing, or a scheme is given with a pattern or has
                points that this pattern doesn't have.
            TypeError: If `other` is neither a pattern nor a region.
        """
        if isinstance(other, RegionPattern):
            if scheme is not None:
                raise InvalidSchemeError(
                    "A scheme can't be resolved in a pattern.", "Give a region and its graph."
                )
            return self == other
        if not isinstance(other, Region):
            raise TypeError(f"A pattern can't be compared with {type(other).__name__}.")
        if graph is None:
            raise InvalidSchemeError(
                "A region can't be compared without its graph.", "Give the graph as well."
            )
        form = canonical_region(other, graph)
        fits = self._fits(form)
        if scheme is None:
            return list(form.nodes) if fits else None
        if not fits:
            return set()
        return set().union(*(point.resolve_in(form, graph) for point in scheme.points()))

    def get_full_insertion_scheme(self, region: Region, graph: GraphIndex) -> InsertionScheme:
        """Return the scheme with every point that can pay off in a region of this pattern.

        Raises:
            InvalidSchemeError: If the region has another pattern.
        """
        form = canonical_region(region, graph)
        if not self._fits(form):
            raise InvalidSchemeError(
                f"Region {region.id} doesn't have the pattern {self.get_short_signature()}.",
                "Take the pattern from the region: RegionPattern.from_region(region, graph).",
            )
        return InsertionScheme.of(points_in(form, graph))

    def format_tree(self, region: Region, graph: GraphIndex, indent: int = 0) -> str:
        """Format a region and its descendants, one line each."""
        lines = []
        waiting = [(region, indent)]
        while waiting:
            each, depth = waiting.pop()
            pattern = self if each is region else RegionPattern.from_region(each, graph)
            text = f"{'  ' * depth}Region {each.id}: {pattern.signature} (size={pattern.size})"
            lines.append(text)
            waiting += [(child, depth + 1) for child in reversed(each.children)]
        return "\n".join(lines)

    def _fits(self, form: CanonicalRegion) -> bool:
        return self.size == len(form.nodes) and self.signature in (
            form.signature(),
            form.signature(shapes=True),
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegionPattern) and self.signature == other.signature

    def __hash__(self) -> int:
        return hash(self.signature)

    def __str__(self) -> str:
        return self.signature

    def __repr__(self) -> str:
        return f"RegionPattern({self.signature!r}, size={self.size})"


@dataclass(frozen=True)
class PatternView:
    """A pattern as it occurs in one model.

    Attributes:
        pattern: The pattern with types and shapes.
        structure: The pattern without them.
        first: The first region of the pattern.
        regions: Number of regions of the pattern.
        nodes: Names of the nodes in all those regions.
        edges: The edges of each point in the first region.
        weighted: Names of weighted ops that read such an edge: quantized whole or not at all.
    """

    pattern: RegionPattern
    structure: RegionPattern
    first: Region
    regions: int
    nodes: frozenset[str]
    edges: Mapping[InsertionPoint, frozenset[Edge]]
    weighted: frozenset[str]

    def scheme_in(self, quantized: Collection[Edge], kernels: Collection[str]) -> InsertionScheme:
        """Return the scheme that a placement amounts to in the pattern.

        A point stands for a whole kernel: an op has no point if it reads a quantized tensor only
        because another op needs it quantized.

        Args:
            quantized: Every edge that the placement quantizes.
            kernels: Names of the ops that it turns into integer kernels.
        """
        chosen, whole = set(quantized), set(kernels)

        def is_chosen(point: InsertionPoint, edges: frozenset[Edge]) -> bool:
            readers = {edge.node for edge in edges}
            if isinstance(point, RegionOutputInsertionPoint):
                readers &= self.weighted
            return edges <= chosen and readers <= whole

        return InsertionScheme.of(each for each in self.edges if is_chosen(each, self.edges[each]))


def view_pattern(first: Region, forms: Sequence[CanonicalRegion], index: GraphIndex) -> PatternView:
    """View a pattern through one of its regions.

    Args:
        first: The region.
        forms: Canonical forms of all regions of the pattern, that of `first` first.
        index: The model, with shapes.
    """
    form = forms[0]
    edges = {
        point: index.effective(to_placement(index, point.resolve_in(form, index)))
        for point in points_in(form, index)
    }
    readers = {edge.node for places in edges.values() for edge in places if edge.node}
    return PatternView(
        RegionPattern(form.signature(shapes=True), len(form.nodes)),
        RegionPattern(form.signature(), len(form.nodes)),
        first,
        len(forms),
        frozenset(index.nodes[position].name or "" for each in forms for position in each.nodes),
        {point: frozenset(places) for point, places in edges.items() if places},
        frozenset(name for name in readers if is_op(index.node[name], *WEIGHTED_OPS)),
    )
