"""A bias before a GELU stays float, and with it the GELU."""

from __future__ import annotations

from qdqtune.graph._op_classes import is_op
from qdqtune.rules._placement_draft import Draft, readers_through, rule


# Seen with ONNX Runtime 1.31 on AVX-512: a ConvNeXt whose MatMuls are quantized runs 1.33 times as
# fast as float, and 1.01 times with these biases quantized as well.
@rule("GELU", "Q/DQ between a bias and its GELU breaks a fusion that is worth more.")
def gelu_bias(draft: Draft) -> None:
    for node in draft.undecided("Add"):
        # Exporters divide by a constant before an Erf.
        readers = readers_through(draft.index, node.outputs[0].name or "", ("Div", "Mul"))
        if draft.index.reads_constant(node) and any(is_op(each, "Erf", "Gelu") for each in readers):
            draft.leave(node, "the engine fuses bias and GELU into one float kernel")
