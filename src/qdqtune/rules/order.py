"""Which rules apply to which engine, and in which order: the first word about an op stands."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtune.engines.latency_shares import estimated_shares
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.rules import (
    attention,
    bias_adds,
    concats,
    conv_channels,
    first_layer,
    gates,
    gelu_bias,
    gemvs,
    last_layer,
    norms_behind_convs,
    passthrough_ops,
    pooling,
    residual_adds,
    shared_tensors,
    small_gemms,
    softmax_masks,
    softmaxes,
    user_filters,
    weighted_ops,
)
from qdqtune.rules.placement_draft import Constraints, Draft
from qdqtune.rules.rule import Rule

_WHOLE_UNITS = (
    user_filters.rule,
    softmax_masks.rule,
    softmaxes.rule,
    gelu_bias.rule,
    first_layer.rule,
    last_layer.rule,
    weighted_ops.rule,
    bias_adds.rule,
    residual_adds.rule,
    gates.rule,
    pooling.rule,
    concats.rule,
    passthrough_ops.rule,
)
_ON_INPUTS = (
    user_filters.rule,
    softmax_masks.rule,
    first_layer.rule,
    weighted_ops.rule,
    residual_adds.rule,
    pooling.rule,
    concats.rule,
    passthrough_ops.rule,
)
_TENSOR_CORES = (
    user_filters.rule,
    softmax_masks.rule,
    attention.rule,
    small_gemms.rule,
    gemvs.rule,
    conv_channels.rule,
    weighted_ops.rule,
    residual_adds.rule,
    pooling.rule,
    concats.rule,
    norms_behind_convs.rule,
    shared_tensors.rule,
)

RULES: Mapping[str, tuple[Rule, ...]] = {
    "onnxruntime": _WHOLE_UNITS,
    "onnxruntime-novnni": _WHOLE_UNITS,
    "openvino": _ON_INPUTS,
    "openvino-novnni": _ON_INPUTS,
    "tensorrt": _TENSOR_CORES,
    "tensorrt-8": _TENSOR_CORES,
}
"""The rules by dialect."""


def draft_placement(
    planner: QuantizationPlanner,
    quant_type: str = "int8",
    constraints: Constraints | None = None,
    shares: Mapping[str, float] | None = None,
) -> Draft:
    """Let the rules of a dialect decide on a graph.

    Args:
        planner: The graph, and what the dialect can quantize in it.
        quant_type: To what.
        constraints: What the user asked for.
        shares: Part of the work that each op does, if it was guessed before.
    """
    shares = estimated_shares(planner.index) if shares is None else shares
    draft = Draft(planner, quant_type, constraints or Constraints(), shares)
    rules = RULES[planner.dialect.name]
    version = None
    while version != draft.version:
        version = draft.version
        for rule in rules:
            rule.apply(draft)
    return draft
