"""Kinds of layers, mapped from the type names of all engines."""

from __future__ import annotations

import enum

from qdqtune.graph.op_classes import QDQ_OPS


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
