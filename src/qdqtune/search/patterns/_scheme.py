"""Schemes: sets of insertion points for one pattern, measured or from names of tensors."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qdqtune.graph._index import GraphIndex
from qdqtune.search._errors import InvalidSchemeError
from qdqtune.search.patterns._insertion_points import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    Point,
    RegionOutputInsertionPoint,
    points_in,
)
from qdqtune.search.regions._canonical import CanonicalRegion, canonical_region
from qdqtune.search.regions._region import Region

LARGEST_MS = 1e300
"""The largest finite latency that a file may contain."""

_HASH_DIGITS = 32


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
        for point in points:
            if isinstance(point, NodeInputInsertionPoint):
                scheme.node_inputs.append(point)
            elif isinstance(point, ChildRegionInputInsertionPoint):
                scheme.child_region_inputs.append(point)
            elif isinstance(point, RegionOutputInsertionPoint):
                scheme.region_outputs.append(point)
            else:
                raise TypeError(f"{type(point).__name__} is not a kind of insertion point.")
        return scheme

    @property
    def hash(self) -> str:
        """A hash that is equal for schemes with the same points in any order."""
        keys = [sorted(_keys(points)) for points in self._lists()]
        return hashlib.sha256(repr(keys).encode()).hexdigest()[:_HASH_DIGITS]

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
        return sum(
            len(set(mine) ^ set(theirs))
            for mine, theirs in zip(self._lists(), other._lists(), strict=True)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return {
            "latency_ms": float(self.latency_ms),
            "error": self.error,
            "profile_timestamp": self.profile_timestamp,
            "nodes_insertion_points": [point.to_dict() for point in self.node_inputs],
            "child_region_inputs": [point.to_dict() for point in self.child_region_inputs],
            "region_outputs": [point.to_dict() for point in self.region_outputs],
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
        if isinstance(latency_ms, bool) or not isinstance(latency_ms, int | float):
            raise InvalidSchemeError(
                f"The latency {latency_ms!r} is not a number.", "Give it in ms."
            )
        if not (0 < latency_ms < LARGEST_MS or latency_ms == math.inf):
            raise InvalidSchemeError(
                f"The latency {latency_ms!r} is no time.",
                "Give milliseconds, or .inf if nothing was measured.",
            )
        return cls(
            _points(NodeInputInsertionPoint, body, "nodes_insertion_points"),
            _points(ChildRegionInputInsertionPoint, body, "child_region_inputs"),
            _points(RegionOutputInsertionPoint, body, "region_outputs"),
            float(latency_ms),
            bool(body.get("error", False)),
            None if timestamp is None else str(timestamp),
        )

    def _lists(self) -> tuple[list[Any], list[Any], list[Any]]:
        return self.node_inputs, self.child_region_inputs, self.region_outputs


def _keys(points: Iterable[InsertionPoint]) -> set[tuple[int, ...]]:
    """Return points as sortable numbers."""
    return {
        tuple(-1 if value is None else value for value in point.to_dict().values())
        for point in points
    }


def _points(kind: type[Point], body: Mapping[str, Any], key: str) -> list[Point]:
    entries = body.get(key, [])
    if not isinstance(entries, list):
        raise InvalidSchemeError(f"{key} is {entries!r}.", "It is a list of insertion points.")
    return [kind.from_dict(entry) for entry in entries]


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
