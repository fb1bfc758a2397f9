"""Maps names in an engine's graph to nodes of the model.

Engines run graphs of their own. Only names link them to the model: the name of a node, of a node
with a suffix from a rewrite, of several nodes, or of the tensor that the layer computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from qdqtune.graph.index import GraphIndex
from qdqtune.records.measurement import LayerTime

EXACT, DERIVED, COPY = 2, 1, 0
"""Reliability of a name; a copy counts as one only if the original is present, too."""

# ONNX Runtime numbers generated nodes, and adds suffixes for rewrites.
_NUMBER = re.compile(r"_token_\d+$")
# OpenVINO numbers the copies of a node; its generated nodes have numbers in the thousands.
_COPY = re.compile(r"_\d{1,2}$")
_SUFFIXES = ("_nchwc", "_nhwc", "_bn", "_new_reshape", "_quant")
_TOGETHER = " + "


def nodes_named(index: GraphIndex, layer: LayerTime) -> Iterator[tuple[str, int]]:
    """Yield the nodes that a layer is named after, each with the reliability of the match.

    The layer's own name counts only if the engine reports no origins: it may be generated, and
    match another node by chance.
    """
    told = bool(layer.origins or layer.outputs)
    for text in layer.origins if told else layer.name.split(_TOGETHER):
        found = _node_named(index, text.strip())
        if found is not None:
            yield found


def _node_named(index: GraphIndex, text: str) -> tuple[str, int] | None:
    if text in index.node:
        return text, EXACT
    for shorter in _shortened(text):
        if shorter in index.node:
            return shorter, DERIVED
        if shorter in index.value:
            producer = index.value[shorter].producer()
            return (producer.name or "", DERIVED) if producer is not None else None
    original = _COPY.sub("", text)
    return (original, COPY) if original in index.node else None


def _shortened(text: str) -> Iterator[str]:
    """Yield the text with rewrite suffixes removed step by step."""
    yield text
    text = _NUMBER.sub("", text)
    yield text
    for suffix in _SUFFIXES:
        if text.endswith(suffix):
            text = text.removesuffix(suffix)
            yield text
    text = text.rstrip("/")
    if "/" in text:
        yield text.rpartition("/")[0]
