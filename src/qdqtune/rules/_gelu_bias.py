"""A bias before a GELU stays float, and with it the GELU."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.graph._op_classes import is_op
from qdqtune.rules._placement_draft import Draft, Rule
from qdqtune.rules._tracing import readers_through

_NAME = "GELU"
_GELU_OPS = ("Erf", "Gelu")


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("Add")):
        adds_bias = any(draft.index.is_constant(value.name or "") for value in node.inputs if value)
        if adds_bias and _feeds_gelu(draft, node):
            draft.leave(node, _NAME, "the engine fuses bias and GELU into one float kernel")


def _feeds_gelu(draft: Draft, node: ir.Node) -> bool:
    """Whether what is added goes into a Gelu, or divided by a constant into an Erf."""
    readers = readers_through(draft.index, node.outputs[0].name or "", ("Div", "Mul"))
    return any(is_op(reader, *_GELU_OPS) for reader in readers)


# Seen with ONNX Runtime 1.31 on AVX-512: a ConvNeXt whose MatMuls are quantized runs 1.33 times as
# fast as float, and 1.01 times with these biases quantized as well.
rule = Rule(_NAME, "Q/DQ between a bias and its GELU breaks a fusion that is worth more.", _apply)
