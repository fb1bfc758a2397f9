"""What part a node plays in what an engine fuses."""

from __future__ import annotations

import enum

import onnx_ir as ir

from qdqtune.autotune.regions.wiring import Wiring
from qdqtune.engines.layer_kinds import TRANSPARENT, Kind, kind_of
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import COPY_OPS, is_standard


class Role(enum.Enum):
    """What a node is in a fused layer."""

    LEAD = "lead"  # a convolution, a matrix product: what a layer is there for
    WORK = "work"  # any other op that a layer can be there for
    POINTWISE = "pointwise"  # goes along with what makes its input
    ASIDE = "aside"  # computes nothing
    SHAPE = "shape"  # computes integers
    CONSTANT = "constant"  # computes the same for every input of the model


COMPUTING = frozenset({Role.LEAD, Role.WORK, Role.POINTWISE})
"""Roles of nodes by which two layers belong together."""

_WHOLE_TYPES = frozenset({ir.DataType.BOOL, ir.DataType.INT32, ir.DataType.INT64})
_LEAD_KINDS = frozenset({Kind.CONVOLUTION, Kind.PRODUCT})
_LEAD_OPS = frozenset({"Einsum", "GRU", "LSTM", "RNN"})
_POINTWISE_OPS = frozenset(
    {
        "Abs", "Add", "BatchNormalization", "Celu", "Clip", "Cos", "Div", "Elu", "Erf", "Exp",
        "FastGelu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Log", "Max", "Min", "Mish",
        "Mul", "Neg", "PRelu", "Pow", "QuickGelu", "Reciprocal", "Relu", "Selu", "Sigmoid", "Sin",
        "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tanh", "ThresholdedRelu", "Where",
    }
)  # fmt: skip


def roles_of(index: GraphIndex, wiring: Wiring) -> list[Role]:
    """The role of every node, by position."""
    roles: list[Role] = []
    given = {value.name or "" for value in index.model.graph.inputs}
    for position, node in enumerate(index.nodes):
        makers = wiring.predecessors[position]
        fixed = all(roles[maker] is Role.CONSTANT for maker in makers)
        if fixed and not any(read.tensor in given for read in wiring.reads[position]):
            roles.append(Role.CONSTANT)
        else:
            roles.append(_role(index, node))
    return roles


def _role(index: GraphIndex, node: ir.Node) -> Role:
    kind = kind_of(node.op_type)
    if kind in _LEAD_KINDS or node.op_type in _LEAD_OPS:
        return Role.LEAD
    if _is_whole(index, node):
        return Role.SHAPE
    if kind in TRANSPARENT or (node.op_type in COPY_OPS and is_standard(node)):
        return Role.ASIDE
    return Role.POINTWISE if node.op_type in _POINTWISE_OPS else Role.WORK


def _is_whole(index: GraphIndex, node: ir.Node) -> bool:
    """Whether all that comes out is sizes, indices, or true and false."""
    kinds = {index.dtype(value.name) for value in node.outputs if value.name}
    return bool(kinds) and kinds <= _WHOLE_TYPES
