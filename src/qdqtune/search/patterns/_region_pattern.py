"""Patterns, which regions share, and schemes: sets of insertion points for one pattern."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op
from qdqtune.records._errors import InvalidSchemeError
from qdqtune.records._placement import Edge
from qdqtune.search.patterns._insertion_points import (
    POINT_KINDS,
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
    ResolvedInsertionPoint,
    points_in,
    to_placement,
)
from qdqtune.search.regions._canonical import (
    COMPOSITE_PREFIX,
    CanonicalRegion,
    canonical_region,
    without_shapes,
)
from qdqtune.search.regions._region import Region
from qdqtune.search.regions._scopes import scope_of_region, title_of

LARGEST_MS = 1e300
"""The largest finite latency that a file may contain."""

_HASH_DIGITS = 32
# What files call the three lists of points.
_POINT_KEYS = ("nodes_insertion_points", "child_region_inputs", "region_outputs")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


@dataclass
class InsertionScheme:
    """Which points of a pattern get a Q/DQ pair.

    Attributes:
        node_inputs: Inputs of the region's own nodes.
        child_region_inputs: Inputs of children.
        region_outputs: Tensors that leave the region.
        latency_ms: The measured latency; infinite if not measured.
        error: Whether it failed.
        profile_timestamp: When it was measured, in ISO 8601.
    """

    node_inputs: list[NodeInputInsertionPoint] = field(default_factory=list)
    child_region_inputs: list[ChildRegionInputInsertionPoint] = field(default_factory=list)
    region_outputs: list[RegionOutputInsertionPoint] = field(default_factory=list)
    latency_ms: float = math.inf
    error: bool = False
    profile_timestamp: str | None = None

    @classmethod
    def of(cls, points: Iterable[InsertionPoint]) -> InsertionScheme:
        """Build a scheme with these points, not measured yet."""
        scheme = cls()
        lists = dict(zip(POINT_KINDS, scheme._lists(), strict=True))
        for point in points:
            if type(point) not in lists:
                raise TypeError(f"{type(point).__name__} is not a kind of insertion point.")
            lists[type(point)].append(point)
        return scheme

    @property
    def hash(self) -> str:
        """A hash that is equal for schemes with the same points in any order."""
        keys = [sorted({point.key for point in points}) for points in self._lists()]
        return _hash(repr(keys))

    @property
    def is_empty(self) -> bool:
        """Whether it has no points."""
        return not any(self._lists())

    @property
    def is_profiled(self) -> bool:
        """Whether it was measured, or failed."""
        return self.error or math.isfinite(self.latency_ms)

    def points(self) -> list[InsertionPoint]:
        """Return all its points."""
        return [*self.node_inputs, *self.child_region_inputs, *self.region_outputs]

    def distance(self, other: InsertionScheme) -> int:
        """Return the number of points that only one of the two has."""
        return len(set(self.points()) ^ set(other.points()))

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return {
            "latency_ms": float(self.latency_ms),
            "error": self.error,
            "profile_timestamp": self.profile_timestamp,
            **{
                key: [point.to_dict() for point in points]
                for key, points in zip(_POINT_KEYS, self._lists(), strict=True)
            },
            "hash": self.hash,
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> InsertionScheme:
        """Parse the serialized form.

        Raises:
            InvalidSchemeError: If it is invalid.
        """
        if not isinstance(body, Mapping):
            raise InvalidSchemeError(f"{body!r} is not a scheme.", "A scheme is a mapping.")
        latency_ms = body.get("latency_ms", math.inf)
        timestamp = body.get("profile_timestamp")
        is_number = isinstance(latency_ms, int | float) and not isinstance(latency_ms, bool)
        if not is_number or not (0 < latency_ms < LARGEST_MS or latency_ms == math.inf):
            raise InvalidSchemeError(
                f"The latency {latency_ms!r} is not a valid time.",
                "Give milliseconds, or .inf if nothing was measured.",
            )
        points: list[InsertionPoint] = []
        for key, kind in zip(_POINT_KEYS, POINT_KINDS, strict=True):
            entries = body.get(key, [])
            if not isinstance(entries, list):
                what = f"{key} is {entries!r}."
                raise InvalidSchemeError(what, "It is a list of insertion points.")
            points += [kind.from_dict(entry) for entry in entries]
        scheme = cls.of(points)
        scheme.latency_ms = float(latency_ms)
        scheme.error = bool(body.get("error", False))
        scheme.profile_timestamp = None if timestamp is None else str(timestamp)
        return scheme

    def _lists(self) -> tuple[list[Any], list[Any], list[Any]]:
        return self.node_inputs, self.child_region_inputs, self.region_outputs


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
        return cls.of_form(canonical_region(region, graph), shapes=shapes)

    @classmethod
    def of_form(cls, form: CanonicalRegion, *, shapes: bool) -> RegionPattern:
        """Like `from_region`, for a region whose canonical form is already known."""
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
        return _hash(self.signature)

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
        signatures = (form.signature(), form.signature(shapes=True))
        return self.size == len(form.nodes) and self.signature in signatures

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegionPattern) and self.signature == other.signature

    def __hash__(self) -> int:
        return hash(self.signature)

    def __str__(self) -> str:
        return self.signature

    def __repr__(self) -> str:
        return f"RegionPattern({self.signature!r}, size={self.size})"


@dataclass
class PatternSchemes:
    """A pattern and its schemes.

    Attributes:
        pattern: The pattern.
        schemes: The schemes, in the order in which they were made.
    """

    pattern: RegionPattern | None = None
    schemes: list[InsertionScheme] = field(default_factory=list)

    @property
    def pattern_signature(self) -> str:
        """The pattern's signature; empty if there is no pattern."""
        return self.pattern.signature if self.pattern is not None else ""

    @property
    def pattern_size(self) -> int:
        """Number of nodes in the pattern."""
        return self.pattern.size if self.pattern is not None else 0

    @property
    def num_schemes(self) -> int:
        """Number of schemes."""
        return len(self.schemes)

    @property
    def best_scheme(self) -> InsertionScheme | None:
        """The fastest scheme that was measured without an error; None if there is none."""
        measured = [each for each in self.schemes if each.is_profiled and not each.error]
        return min(measured, key=lambda scheme: scheme.latency_ms, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return {
            "pattern_signature": self.pattern_signature,
            "pattern_size": self.pattern_size,
            "schemes": [scheme.to_dict() for scheme in self.schemes],
        }

    @classmethod
    def from_dict(
        cls,
        body: Mapping[str, Any],
        pattern: RegionPattern | None = None,
        skip: Callable[[int, InvalidSchemeError], None] | None = None,
    ) -> PatternSchemes:
        """Parse the serialized form.

        Args:
            body: The serialized form.
            pattern: The pattern that they are for, if already known; it overrides the one in the
                serialized form.
            skip: Told the number of each invalid scheme, which is then left out.

        Raises:
            InvalidSchemeError: If it is invalid.
        """
        known = body if isinstance(body, Mapping) else {"schemes": None}
        signature, size = known.get("pattern_signature", ""), known.get("pattern_size", 0)
        listed = known.get("schemes", [])
        if not (isinstance(signature, str) and type(size) is int and isinstance(listed, list)):
            raise InvalidSchemeError(
                "That is not a list of schemes for a pattern.",
                "It has pattern_signature, pattern_size and schemes.",
            )
        if pattern is None and signature:
            pattern = RegionPattern(signature, size)
        found = cls(pattern)
        for number, scheme in enumerate(listed):
            try:
                found.schemes.append(InsertionScheme.from_dict(scheme))
            except InvalidSchemeError as error:
                if skip is None:
                    raise
                skip(number, error)
        return found


# Suffixes that tools append to a tensor's name for the two sides of its pair.
_SIDES = re.compile(
    r"(?:_qdq|_n\d+_i\d+)?_(?:quantized|dequantized)$|_(?:Quantize|Dequantize)Linear_Output(?:_\d+)?$"
    r"|_(?:relu|clip)$"  # for an activation that a Q replaced; reading restores it
)


def known_tensors(index: GraphIndex, names: Iterable[str]) -> set[str]:
    """Find the tensors of a model that these names refer to.

    A name that the model doesn't have may be that of a Q or DQ output. It then refers to the tensor
    before the pair, if the rest of the name identifies it.
    """
    found: set[str] = set()
    for name in names:
        meant = name if name in index.value else _SIDES.sub("", name)
        if meant in index.value:
            found.add(meant)
    return found


def scheme_from_tensors(
    region: Region, index: GraphIndex, names: Collection[str]
) -> InsertionScheme:
    """Return the scheme that quantizes these tensors in a region, where they are points.

    A point of an op with two activations counts only if both are named; weights are included.

    Args:
        region: The region.
        index: The graph.
        names: Names of tensors, or of the outputs of their Q or DQ.
    """
    return scheme_in(canonical_region(region, index), index, known_tensors(index, names))


def scheme_in(
    form: CanonicalRegion, index: GraphIndex, tensors: Collection[str]
) -> InsertionScheme:
    """Like `scheme_from_tensors`, for a region in canonical form and tensors of the model."""
    named = frozenset(tensors)

    def is_named(point: InsertionPoint) -> bool:
        places = {place.tensor_name for place in point.resolve_in(form, index)}
        activations = {name for name in places if not index.is_constant(name)}
        return (activations or places) <= named

    return InsertionScheme.of(filter(is_named, points_in(form, index)))


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
        title: The modules that the regions belong to, with `*` for what varies; may be empty.
    """

    pattern: RegionPattern
    structure: RegionPattern
    first: Region
    regions: int
    nodes: frozenset[str]
    edges: Mapping[InsertionPoint, frozenset[Edge]]
    weighted: frozenset[str]
    title: str = ""

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


def group_regions(regions: Iterable[Region], index: GraphIndex) -> list[list[CanonicalRegion]]:
    """Put regions in canonical form; those with the same structure and shapes are together.

    Raises:
        AutotunerError: If a region doesn't fit the graph.
    """
    found: dict[str, list[CanonicalRegion]] = {}
    for region in regions:
        form = canonical_region(region, index)
        found.setdefault(form.signature(shapes=True), []).append(form)
    return list(found.values())


def view_pattern(forms: Sequence[CanonicalRegion], index: GraphIndex) -> PatternView:
    """View a pattern through the first of its regions.

    Args:
        forms: Canonical forms of all regions of the pattern.
        index: The model, with shapes.
    """
    form = forms[0]
    edges = {
        point: index.effective(to_placement(index, point.resolve_in(form, index)))
        for point in points_in(form, index)
    }
    readers = {edge.node for places in edges.values() for edge in places if edge.node}
    return PatternView(
        RegionPattern.of_form(form, shapes=True),
        RegionPattern.of_form(form, shapes=False),
        form.region,
        len(forms),
        frozenset(index.nodes[position].name or "" for each in forms for position in each.nodes),
        {point: places for point, places in edges.items() if places},
        frozenset(name for name in readers if is_op(index.node[name], *WEIGHTED_OPS)),
        title_of([scope_of_region(each.region, index) for each in forms]),
    )
