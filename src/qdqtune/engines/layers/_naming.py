"""Names and type names of layers.

The kinds of layers in all engines, and the nodes that names refer to.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import QDQ_OPS
from qdqtune.records._measurement import LayerTime


class Kind(enum.Enum):
    """The main computation of a layer or node, used to match the two."""

    CONVOLUTION = "convolution"
    PRODUCT = "matrix product"
    POOLING = "pooling"
    MOVE = "move"
    TYPE = "type"
    OTHER = "other"


LEADS = frozenset({Kind.CONVOLUTION, Kind.PRODUCT, Kind.POOLING})
"""Kinds of layers that are built around one node of the same kind."""

TRANSPARENT = frozenset({Kind.MOVE, Kind.TYPE})
"""Kinds that compute nothing."""

SERVICES = frozenset({"Reformat", "Reorder", "ReorderInput", "ReorderOutput"})
"""Layer types that engines insert for other layers, without a corresponding op."""

_TYPE_CHANGES = QDQ_OPS | {"Cast", "Convert", "FakeQuantize"}
_MOVES = SERVICES | {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
_BY_PART = (
    ("Conv", Kind.CONVOLUTION),
    ("Deconvolution", Kind.CONVOLUTION),
    ("MatMul", Kind.PRODUCT),
    ("Gemm", Kind.PRODUCT),
    ("FullyConnected", Kind.PRODUCT),
    ("Attention", Kind.PRODUCT),
    ("Pool", Kind.POOLING),
)
# Engines' names for ops that ONNX names differently.
_SYNONYMS = {
    "BiasGelu": ("Gelu", "Erf", "Tanh"),
    "Concatenation": ("Concat",),
    "Eltwise": ("Add", "Mul", "Sub", "Div", "Relu", "Sigmoid", "Clip", "Pow", "Erf", "Tanh"),
    "Gelu": ("Erf", "Tanh"),
    "Interpolate": ("Resize", "Upsample"),
    "Math": ("Cos", "Sin", "Abs", "Neg", "Sign", "HardSigmoid"),
    "MVN": ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "ReduceMean"),
    "QuickGelu": ("Sigmoid",),
    "Reduce": ("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax"),
    "RNNCell": ("GRU", "LSTM", "RNN"),
    "RNNSeq": ("GRU", "LSTM", "RNN"),
    "SkipLayerNormalization": ("LayerNormalization", "Add"),
    "StridedSlice": ("Slice",),
}
_ANYTHING = frozenset({"Subgraph"})


def kind_of(op_type: str) -> Kind:
    """Return the kind of an ONNX op or of an engine's layer."""
    if op_type in _TYPE_CHANGES:
        return Kind.TYPE
    if op_type in _MOVES:
        return Kind.MOVE
    return next((kind for part, kind in _BY_PART if part in op_type), Kind.OTHER)


def fits(layer_type: str, op_type: str) -> bool:
    """Whether a layer of that type can execute such an op."""
    kind = kind_of(op_type)
    if op_type in _SYNONYMS.get(layer_type, ()):
        return True
    return kind is kind_of(layer_type) if kind in LEADS else op_type in layer_type


def takes_anything(layer_type: str) -> bool:
    """Whether a layer's type says nothing about its ops."""
    return layer_type in _ANYTHING


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
