"""Which rules apply to which engine, and in which order: the first word about an op stands."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.rules import (
    _attention as attention,
)
from qdqtune.rules import (
    _bias_adds as bias_adds,
)
from qdqtune.rules import (
    _concats as concats,
)
from qdqtune.rules import (
    _conv_channels as conv_channels,
)
from qdqtune.rules import (
    _first_layer as first_layer,
)
from qdqtune.rules import (
    _gates as gates,
)
from qdqtune.rules import (
    _gelu_bias as gelu_bias,
)
from qdqtune.rules import (
    _gemvs as gemvs,
)
from qdqtune.rules import (
    _last_layer as last_layer,
)
from qdqtune.rules import (
    _norms_behind_convs as norms_behind_convs,
)
from qdqtune.rules import (
    _passthrough_ops as passthrough_ops,
)
from qdqtune.rules import (
    _pooling as pooling,
)
from qdqtune.rules import (
    _residual_adds as residual_adds,
)
from qdqtune.rules import (
    _shared_tensors as shared_tensors,
)
from qdqtune.rules import (
    _small_gemms as small_gemms,
)
from qdqtune.rules import (
    _softmax_masks as softmax_masks,
)
from qdqtune.rules import (
    _softmaxes as softmaxes,
)
from qdqtune.rules import (
    _user_filters as user_filters,
)
from qdqtune.rules import (
    _weighted_ops as weighted_ops,
)
from qdqtune.rules._placement_draft import Constraints, Draft, Rule

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
