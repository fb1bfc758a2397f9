"""Convolutions with too few channels, or with a weight that is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from qdqtune.rules._placement_draft import Draft, rule

_FEW = 16
_MOST_FLOAT8_TAPS = 32


@rule("Conv channels", "Integer tensor cores take channels by the 16; what is missing is padded.")
def conv_channels(draft: Draft) -> None:
    for node in draft.undecided("Conv"):
        reason = _unfit(draft, node)
        if reason:
            draft.leave(node, reason)


def _unfit(draft: Draft, node: ir.Node) -> str:
    if not draft.index.is_constant(draft.index.reads(node)[1]):
        return "its weight is computed while the model runs"
    channels, depth, *taps = draft.index.fixed_shape_read(node, 1) or (0, 0)
    if not taps:
        return ""
    if draft.quant_type == "fp8":
        if math.prod(taps) > _MOST_FLOAT8_TAPS or min(channels, depth) <= _FEW:
            return f"there is no fast float8 kernel for {channels} by {depth} channels"
        return ""
    if min(channels, depth) >= _FEW or _has_kernel(node, channels, depth, taps):
        return ""
    return f"there is no fast kernel for {channels} by {depth} channels"


def _has_kernel(node: ir.Node, channels: int, depth: int, taps: Sequence[int]) -> bool:
    """Whether few channels are enough after all: grouped, or many on the other side."""
    if node.attributes.get_int("group", 1) > 1:
        return channels % 8 == 0 and min(taps) >= 3
    data = node.inputs[0]
    is_first = data is not None and data.producer() is None
    is_wide = max(channels, depth) >= _FEW or is_first
    return is_wide and (channels % 8 == 0 or depth % 8 == 0) and len(set(taps)) == 1
