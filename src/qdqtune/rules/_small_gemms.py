"""Products that are too narrow for the integer tensor cores."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.rules._placement_draft import Draft, rule

_LEAST = 16


@rule("small GEMM", "Padded to a tile of 16, most of the kernel multiplies zeros.")
def small_gemms(draft: Draft) -> None:
    for node in draft.undecided("MatMul", "Gemm"):
        depth, width = product_sizes(draft, node)
        for size, what in ((depth, "values are summed up"), (width, "columns come out")):
            if size is not None and 0 < size < _LEAST:
                draft.leave(node, f"only {size} {what}, fewer than {_LEAST}")


def product_sizes(draft: Draft, node: ir.Node) -> tuple[int | None, int | None]:
    """Return the number of products that are summed up, and of columns in the result."""
    shape = draft.index.shape_read(node, 1)
    if not shape:
        return None, None
    if len(shape) == 1:
        return shape[0], 1
    depth, width = shape[-2:]
    is_turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
    return (width, depth) if is_turned else (depth, width)
