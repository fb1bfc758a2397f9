"""Activations that don't fuse into the op before them, and what they gate."""

from __future__ import annotations

from qdqtune.rules._placement_draft import Draft, rule


# Seen with ONNX Runtime 1.31: EfficientNet 0.73 times as fast as float with these in floats, 1.19
# with them quantized.
@rule("activation", "A SiLU in floats turns every Conv's result into floats and back.")
def gates(draft: Draft) -> None:
    for node in draft.undecided("LeakyRelu", "Mul", "Sigmoid"):
        tensors = draft.activations(node)
        result = node.outputs[0].name or ""
        if tensors and all(map(draft.is_integer, tensors)) and draft.leads_to_integers(result):
            draft.choose(node, "it stands between quantized ops")
