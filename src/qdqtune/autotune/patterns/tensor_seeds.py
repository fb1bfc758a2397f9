"""Convert names of quantized tensors, as in another tool's model, to schemes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from qdqtune.autotune.patterns.insertion_points import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.autotune.patterns.scheme import InsertionScheme
from qdqtune.autotune.regions.canonical import CanonicalRegion, canonical_region
from qdqtune.autotune.regions.region import Region
from qdqtune.graph.index import GraphIndex

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
        return _is_named(point, form, index, named)

    return InsertionScheme(
        list(filter(is_named, NodeInputInsertionPoint.collect_in(form, index))),
        list(filter(is_named, ChildRegionInputInsertionPoint.collect_in(form, index))),
        list(filter(is_named, RegionOutputInsertionPoint.collect_in(form, index))),
    )


def _is_named(
    point: InsertionPoint, form: CanonicalRegion, index: GraphIndex, tensors: frozenset[str]
) -> bool:
    places = {place.tensor_name for place in point.resolve_in(form, index)}
    activations = {name for name in places if not index.is_constant(name)}
    return (activations or places) <= tensors
