"""Patterns: the structure of a region, independent of names and location."""

from __future__ import annotations

import hashlib
from typing import overload

from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.autotune.patterns.insertion_points import (
    ChildRegionInputInsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.autotune.patterns.resolved import ResolvedInsertionPoint
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.regions.canonical import CanonicalRegion, canonical_region
from qdqtune.autotune.regions.region import Region
from qdqtune.autotune.regions.signature import COMPOSITE_PREFIX, without_shapes
from qdqtune.graph.index import GraphIndex

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
        return InsertionScheme(
            NodeInputInsertionPoint.collect_in(form, graph),
            ChildRegionInputInsertionPoint.collect_in(form, graph),
            RegionOutputInsertionPoint.collect_in(form, graph),
        )

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
