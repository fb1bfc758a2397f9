"""Which rules apply in which dialect, and in which order: the first word about an op stands."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.qdq._dialect import Dialect, Output
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.rules._attention import attention
from qdqtune.rules._bias_adds import bias_adds
from qdqtune.rules._concats import concats
from qdqtune.rules._conv_channels import conv_channels
from qdqtune.rules._dynamic_products import dynamic_products
from qdqtune.rules._first_layer import first_layer
from qdqtune.rules._gates import gates
from qdqtune.rules._gelu_bias import gelu_bias
from qdqtune.rules._gemvs import gemvs
from qdqtune.rules._last_layer import last_layer
from qdqtune.rules._norms_behind_convs import norms_behind_convs
from qdqtune.rules._passthrough_ops import passthrough_ops
from qdqtune.rules._placement_draft import Constraints, Draft, Rule
from qdqtune.rules._pooling import pooling
from qdqtune.rules._residual_adds import residual_adds
from qdqtune.rules._shared_tensors import shared_tensors
from qdqtune.rules._small_gemms import small_gemms
from qdqtune.rules._softmax_masks import softmax_masks
from qdqtune.rules._softmaxes import softmaxes
from qdqtune.rules._unfused_sums import unfused_sums
from qdqtune.rules._user_filters import user_filters
from qdqtune.rules._weighted_ops import weighted_ops

_WHOLE_UNITS = (
    user_filters, dynamic_products, softmax_masks, softmaxes, gelu_bias, first_layer, last_layer,
    weighted_ops, bias_adds, residual_adds, gates, pooling, concats, passthrough_ops, unfused_sums,
)  # fmt: skip
_ON_INPUTS = (
    user_filters, dynamic_products, softmax_masks, first_layer, weighted_ops, residual_adds,
    pooling, concats, passthrough_ops,
)  # fmt: skip
_TENSOR_CORES = (
    user_filters, softmax_masks, attention, small_gemms, gemvs, conv_channels, weighted_ops,
    residual_adds, pooling, concats, norms_behind_convs, shared_tensors,
)  # fmt: skip

RULES: Mapping[str, tuple[Rule, ...]] = {
    "onnxruntime": _WHOLE_UNITS,
    "onnxruntime-novnni": _WHOLE_UNITS,
    "openvino": _ON_INPUTS,
    "openvino-novnni": _ON_INPUTS,
    "tensorrt": _TENSOR_CORES,
    "tensorrt-8": _TENSOR_CORES,
}
"""The rules by built-in dialect."""


def rules_of(dialect: Dialect) -> tuple[Rule, ...]:
    """The rules of a dialect; one of a plugin has those of engines that need the same Q/DQ."""
    needs_units = any(rule.output is Output.REQUIRED for rule in dialect.rules.values())
    return RULES.get(dialect.name, _WHOLE_UNITS if needs_units else _ON_INPUTS)


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
    rules = rules_of(planner.dialect)
    version = None
    while version != draft.version:
        version = draft.version
        for rule in rules:
            rule.apply(draft)
    return draft
