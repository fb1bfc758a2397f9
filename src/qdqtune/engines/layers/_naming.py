"""Kinds of layers, and what an engine's names reveal about the nodes that a layer executes."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass

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

EXACT, DERIVED, COPY = 2, 1, 0
"""Reliability of a name; a copy counts as one only if the original is present, too."""


@dataclass(frozen=True)
class WholePart:
    """The ends of a part of the model that was compiled as a whole.

    Attributes:
        first: The nodes that it begins with.
        last: The nodes that it ends with.
        readers: The nodes that read the weight that it begins with, if it begins with one.
    """

    first: tuple[str, ...]
    last: tuple[str, ...]
    readers: tuple[str, ...]


@dataclass(frozen=True)
class NamedLayer:
    """A layer with what its engine's naming reveals, which is all that the mapper needs.

    Attributes:
        time: The layer, with its tensors by the engine's names.
        kind: What it computes.
        told: Names of the nodes that the engine reports for it.
        claims: Those that it may execute, each with the reliability of the name.
        reads: Tensors of the model that it reads; empty strings for others.
        writes: Tensors of the model that it writes; empty strings for others.
        whole: The ends, if it is a part of the model that was compiled as a whole.
        serves: Position of the layer that its name says it copies for; None if it doesn't say.
        converts: Whether it only converts the type of values; None if that follows from its nodes.
    """

    time: LayerTime
    kind: Kind
    told: tuple[str, ...] = ()
    claims: tuple[tuple[str, int], ...] = ()
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    whole: WholePart | None = None
    serves: int | None = None
    converts: bool | None = None


SERVICES = frozenset({"Reformat", "Reorder", "ReorderInput", "ReorderOutput"})
"""Layer types that engines insert for other layers, without a corresponding op."""

# Layer types that reveal nothing about their ops.
_ANYTHING = frozenset({"Subgraph"})
# ONNX ops by the layer type that executes them under another name.
_SYNONYMS = {
    # ONNX Runtime
    "BiasGelu": ("Gelu", "Erf", "Tanh"),
    "Gelu": ("Erf", "Tanh"),
    "QuickGelu": ("Sigmoid",),
    "SkipLayerNormalization": ("LayerNormalization", "Add"),
    # OpenVINO
    "Concatenation": ("Concat",),
    "Eltwise": ("Add", "Mul", "Sub", "Div", "Relu", "Sigmoid", "Clip", "Pow", "Erf", "Tanh"),
    "Interpolate": ("Resize", "Upsample"),
    "MVN": ("LayerNormalization", "InstanceNormalization", "GroupNormalization", "ReduceMean"),
    "Math": ("Cos", "Sin", "Abs", "Neg", "Sign", "HardSigmoid"),
    "RNNCell": ("GRU", "LSTM", "RNN"),
    "RNNSeq": ("GRU", "LSTM", "RNN"),
    "Reduce": ("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceSum", "ReduceMax"),
    "StridedSlice": ("Slice",),
}
_TYPE_CHANGES = QDQ_OPS | {"Cast", "Convert", "FakeQuantize"}
_MOVES = SERVICES | {"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
# Parts of the names of ops and layer types, by kind.
_PARTS = {
    Kind.CONVOLUTION: ("Conv", "Deconvolution"),
    Kind.PRODUCT: ("MatMul", "Gemm", "FullyConnected", "Attention"),
    Kind.POOLING: ("Pool",),
}
# What ONNX Runtime appends to the names of nodes and tensors that it rewrites.
_SUFFIXES = ("_nchwc", "_nhwc", "_bn", "_new_reshape", "_quant")
# ONNX Runtime numbers generated nodes.
_NUMBER = re.compile(r"_token_\d+$")
# OpenVINO numbers the copies of a node; its generated nodes have numbers in the thousands.
_COPY = re.compile(r"_\d{1,2}$")
_TOGETHER = " + "


def kind_of(op_type: str) -> Kind:
    """Return the kind of an ONNX op or of an engine's layer."""
    if op_type in _TYPE_CHANGES:
        return Kind.TYPE
    if op_type in _MOVES:
        return Kind.MOVE
    for kind, parts in _PARTS.items():
        if any(part in op_type for part in parts):
            return kind
    return Kind.OTHER


def fits(layer_type: str, op_type: str) -> bool:
    """Whether a layer of that type can execute such an op."""
    kind = kind_of(op_type)
    if op_type in _SYNONYMS.get(layer_type, ()):
        return True
    return kind is kind_of(layer_type) if kind in LEADS else op_type in layer_type


def takes_anything(layer_type: str) -> bool:
    """Whether a layer's type reveals nothing about its ops."""
    return layer_type in _ANYTHING


def named_layer(index: GraphIndex, layer: LayerTime) -> NamedLayer:
    """Return a layer of an engine that reports origins or tensors, or names layers after nodes.

    The layer's own name counts only if the engine reports no origins: it may be generated, and
    match another node by chance.
    """
    texts = layer.origins
    if not (layer.origins or layer.outputs):
        texts = tuple(layer.name.split(_TOGETHER))
    found = [each for each in (_node_named(index, text.strip()) for text in texts) if each]
    return NamedLayer(
        layer,
        kind_of(layer.op_type),
        told=tuple(name for name, _ in found),
        claims=tuple(each for each in found if _may_execute(index, layer, *each)),
        reads=layer.inputs,
        writes=layer.outputs,
    )


def _may_execute(index: GraphIndex, layer: LayerTime, name: str, strength: int) -> bool:
    """Whether a layer named after a node may execute it: it could also transpose an operand."""
    kind = kind_of(index.node[name].op_type)
    if layer.op_type in SERVICES:  # TensorRT runs a Q or DQ as such a layer, with no other origin
        return kind is Kind.MOVE or (kind is Kind.TYPE and layer.origins == (name,))
    return strength == EXACT or kind_of(layer.op_type) not in TRANSPARENT or kind in TRANSPARENT


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
