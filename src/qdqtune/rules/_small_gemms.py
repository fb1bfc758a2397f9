"""Products that are too narrow for the integer tensor cores."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.rules._placement_draft import Draft, Rule

_NAME = "small GEMM"
_LEAST = 16


def _apply(draft: Draft) -> None:
    for node in list(draft.undecided("MatMul", "Gemm")):
        depth, width = sizes(draft, node)
        for size, what in ((depth, "values are summed up"), (width, "columns come out")):
            if size is not None and 0 < size < _LEAST:
                draft.leave(node, _NAME, f"only {size} {what}, fewer than {_LEAST}")
                break


def sizes(draft: Draft, node: ir.Node) -> tuple[int | None, int | None]:
    """How many products are summed up, and how many columns the result has."""
    weight = node.inputs[1]
    shape = draft.index.shape(weight.name or "") if weight is not None else None
    if not shape:
        return None, None
    is_turned = bool(node.attributes.get_int("transB", 0)) if node.op_type == "Gemm" else False
    if len(shape) == 1:
        return shape[0], 1
    depth, width = shape[-2:]
    return (width, depth) if is_turned else (depth, width)


rule = Rule(_NAME, "Padded to a tile of 16, most of the kernel multiplies zeros.", _apply)
