"""From names of quantized tensors, as another tool's model has them, to schemes."""

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

# What tools append to a tensor's name for the two sides of its pair.
_SIDES = re.compile(
    r"(?:_qdq|_n\d+_i\d+)?_(?:quantized|dequantized)$|_(?:Quantize|Dequantize)Linear_Output(?:_\d+)?$"
    r"|_(?:relu|clip)$"  # of an activation that a Q stood for, as reading puts it back
)


def known_tensors(index: GraphIndex, names: Iterable[str]) -> set[str]:
    """The tensors of a model that are meant by these names.

    A name that the model doesn't have may be that of a Q's or DQ's result: then the tensor in
    front of the pair is meant, if the rest of the name says which.
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
    """The scheme that quantizes these tensors in a region, as far as they are points there.

    A point of an op with two activations counts only if both are named; weights come along.

    Args:
        region: The region.
        index: The graph.
        names: Names of tensors, or of the results of their Q or DQ.
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
