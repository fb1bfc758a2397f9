"""Models quantized in another way than with Q/DQ pairs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph.op_classes import is_standard
from qdqtune.records.errors import ModelError

# The QOperator format: ops that compute on integers and carry their scales as inputs.
_QOPERATOR = frozenset({"QLinearConv", "QLinearMatMul"})
_QOPERATOR_MICROSOFT = ("QLinear", "QGemm")
# What dynamic quantization leaves: scales are computed at run time.
_DYNAMIC = frozenset({"ConvInteger", "MatMulInteger", "DynamicQuantizeLinear"})
_DYNAMIC_MICROSOFT = ("DynamicQuantize", "MatMulIntegerToFloat", "QAttention")

_MICROSOFT = "com.microsoft"


def refuse_integer_ops(model: ir.Model, path: str | Path) -> None:
    """Make sure that a model is float, or quantized with Q/DQ pairs.

    Raises:
        ModelError: If it has ops of the QOperator format or of dynamic quantization.
    """
    operators, dynamic = Counter[str](), Counter[str]()
    for node in model.graph:
        if _is_one(node, _QOPERATOR, _QOPERATOR_MICROSOFT):
            operators[node.op_type] += 1
        elif _is_one(node, _DYNAMIC, _DYNAMIC_MICROSOFT):
            dynamic[node.op_type] += 1
    if operators:
        raise ModelError(
            f"{path} is quantized in the QOperator format ({_counted(operators)}), which has no "
            "Q/DQ nodes that could be moved.",
            "Start from the float model it was made from, or quantize that in the QDQ format "
            "(quant_format=QuantFormat.QDQ). `qdqtune bench` times the file as it is.",
        )
    if dynamic:
        raise ModelError(
            f"{path} is quantized dynamically ({_counted(dynamic)}): its scales are computed at "
            "run time.",
            "Start from the float model it was made from. `qdqtune bench` times the file as it is.",
        )


def _is_one(node: ir.Node, standard: frozenset[str], microsoft: tuple[str, ...]) -> bool:
    if is_standard(node):
        return node.op_type in standard
    return node.domain == _MICROSOFT and node.op_type.startswith(microsoft)


def _counted(ops: Counter[str]) -> str:
    return ", ".join(f"{count} {op_type}" for op_type, count in ops.most_common(3))
