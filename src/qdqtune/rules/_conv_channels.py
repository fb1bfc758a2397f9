"""Convolutions with too few channels, or with a weight that is computed."""

from __future__ import annotations

import math

import onnx_ir as ir

from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "Conv channels"
_FEW = 16
_MOST_FLOAT8_TAPS = 32


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("Conv")):
        reason = _unfit(draft, node)
        if reason:
            draft.leave(node, _NAME, reason)


def _unfit(draft: Draft, node: ir.Node) -> str:
    weight = node.inputs[1]
    shape = draft.index.shape(weight.name or "") if weight is not None else None
    if weight is None or not draft.index.is_constant(weight.name or ""):
        return "its weight is computed while the model runs"
    if shape is None or None in shape or len(shape) < 3:
        return ""
    channels, depth, *taps = (dim for dim in shape if dim is not None)
    if draft.quant_type == "fp8":
        if math.prod(taps) > _MOST_FLOAT8_TAPS or min(channels, depth) <= _FEW:
            return f"there is no fast float8 kernel for {channels} by {depth} channels"
        return ""
    if min(channels, depth) >= _FEW or _has_kernel(node, channels, depth, taps):
        return ""
    return f"there is no fast kernel for {channels} by {depth} channels"


def _has_kernel(node: ir.Node, channels: int, depth: int, taps: list[int]) -> bool:
    """Whether few channels are enough after all: grouped, or many on the other side."""
    if node.attributes.get_int("group", 1) > 1:
        return channels % 8 == 0 and min(taps) >= 3
    data = node.inputs[0]
    is_first = data is not None and data.producer() is None
    is_wide = max(channels, depth) >= _FEW or is_first
    return is_wide and (channels % 8 == 0 or depth % 8 == 0) and len(set(taps)) == 1


rule = Rule(
    _NAME, "Integer tensor cores take channels by the 16; what is missing is padded.", _apply
)
