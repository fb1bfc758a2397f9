"""What kinds of layers there are, by the words of all engines."""

from __future__ import annotations

import enum

from qdqtune.graph.op_classes import QDQ_OPS


class Kind(enum.Enum):
    """What a layer or a node is mainly busy with, as far as it tells the one by the other."""

    CONVOLUTION = "convolution"
    PRODUCT = "matrix product"
    POOLING = "pooling"
    MOVE = "move"
    TYPE = "type"
    OTHER = "other"


LEADS = frozenset({Kind.CONVOLUTION, Kind.PRODUCT, Kind.POOLING})
"""Kinds of which a layer has a node that it is named after in spirit, if not in letters."""

TRANSPARENT = frozenset({Kind.MOVE, Kind.TYPE})
"""Kinds that compute nothing."""

SERVICES = frozenset({"Reformat", "Reorder", "ReorderInput", "ReorderOutput"})
"""Types of layers that engines put in for others, and that no op asks for as such."""

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
# Engines' words for ops that ONNX calls by other ones.
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
    """The kind of an ONNX op or of an engine's layer."""
    if op_type in _TYPE_CHANGES:
        return Kind.TYPE
    if op_type in _MOVES:
        return Kind.MOVE
    return next((kind for part, kind in _BY_PART if part in op_type), Kind.OTHER)


def fits(layer_type: str, op_type: str) -> bool:
    """Whether a layer of that type can be there for the sake of such an op."""
    kind = kind_of(op_type)
    if op_type in _SYNONYMS.get(layer_type, ()):
        return True
    return kind is kind_of(layer_type) if kind in LEADS else op_type in layer_type


def takes_anything(layer_type: str) -> bool:
    """Whether the type of a layer says nothing about the ops in it."""
    return layer_type in _ANYTHING
