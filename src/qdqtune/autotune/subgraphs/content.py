"""What a subgraph of a model is, whatever its names: equal subgraphs are looked at once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from qdqtune.autotune.regions.canonical import canonical_region
from qdqtune.autotune.regions.region import Region, RegionType
from qdqtune.graph.index import GraphIndex

_DIGEST_BYTES = 12


@dataclass(frozen=True)
class Content:
    """A subgraph in canonical form.

    Attributes:
        key: Equal for subgraphs of the same structure, attributes, shapes and types.
        nodes: Names of its nodes; those of equal subgraphs correspond to each other.
        inputs: Tensors that it reads and doesn't make, constants left out; in such an order, too.
        outputs: Tensors that others see, likewise.
    """

    key: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def content_of(index: GraphIndex, nodes: Iterable[str]) -> Content:
    """Put a subgraph in canonical form.

    Args:
        index: The model, with the shapes that it runs at.
        nodes: Names of the nodes.
    """
    region = Region(0, 0, RegionType.LEAF)
    region.nodes.update(index.position[name] for name in nodes)
    form = canonical_region(region, index)
    text = form.signature(shapes=True).encode()
    return Content(
        hashlib.blake2b(text, digest_size=_DIGEST_BYTES).hexdigest(),
        tuple(index.nodes[position].name or "" for position in form.nodes),
        form.inputs,
        form.outputs,
    )
