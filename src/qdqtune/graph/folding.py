"""Constant and BatchNorm folding that never touches quantization.

The work is onnxscript's; what is ours is what it may fold and that node names survive: a Conv
keeps its name when the BatchNorm behind it disappears into it.
"""

from __future__ import annotations

import logging

import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript import optimizer, rewriter
from onnxscript.rewriter.rules.common import (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)

from qdqtune.graph.kernel_shapes import write_kernel_shapes
from qdqtune.graph.naming import name_nodes
from qdqtune.graph.op_classes import QDQ_OPS, is_op, is_standard
from qdqtune.graph.shapes import infer_shapes

_logger = logging.getLogger(__name__)

_BATCHNORM_RULES = (
    fuse_batchnorm_into_conv_rule,
    fuse_batchnorm_into_conv_transpose_rule,
    fuse_batchnorm_into_gemm_rule,
)

# Ops that hardly make a constant larger: folding them costs no file size, whatever their input is.
_NEVER_GROW = frozenset(
    {
        "Cast", "Identity", "Neg", "Reciprocal", "Reshape", "Slice", "Sqrt", "Squeeze",
        "Transpose", "Unsqueeze",
    }
)  # fmt: skip


def fold(model: ir.Model) -> bool:
    """Fold constants and BatchNorms in place; Q/DQ nodes and what they guard stay.

    Returns:
        Whether anything changed.
    """
    name_nodes(model)
    # Old files list their weights as inputs, too; as defaults that may be overridden they could
    # neither be folded nor quantized.
    fixed = passes.RemoveInitializersFromInputsPass()(model)
    lifted = passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    folded = optimizer.fold_constants(
        model, onnx_shape_inference=False, should_fold=_may_fold, output_size_limit=1 << 24
    )
    fused = _fold_batchnorms(model)
    written = write_kernel_shapes(model)
    modified = bool(fixed.modified or lifted.modified or folded.modified or fused or written)
    if modified:
        passes.RemoveUnusedNodesPass()(model)
        name_nodes(model)
        infer_shapes(model)
    return modified


def _may_fold(node: ir.Node) -> bool | None:
    if not is_standard(node) or node.op_type in QDQ_OPS:
        return False
    return True if node.op_type in _NEVER_GROW else None


def _fold_batchnorms(model: ir.Model) -> bool:
    # A rewritten node takes over the output of the BatchNorm it absorbed: that leads to its name.
    absorbed = {}
    for node in model.graph:
        if is_op(node, "BatchNormalization"):
            producer = node.inputs[0].producer() if node.inputs[0] is not None else None
            if producer is not None:
                absorbed[node.outputs[0].name] = producer.name
    if not absorbed:
        return False
    before = len(model.graph)
    rewriter.rewrite(model, pattern_rewrite_rules=list(_BATCHNORM_RULES))
    kept = {node.name for node in model.graph}
    for node in model.graph:
        name = absorbed.get(node.outputs[0].name)
        if name is not None and name not in kept:
            node.name = name
    _logger.debug("folded %d BatchNormalization nodes", before - len(model.graph))
    return len(model.graph) != before
