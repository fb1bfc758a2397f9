"""TensorRT: symmetric int8 or float8, Q/DQ on the inputs of ops, float biases."""

from __future__ import annotations

import onnx_ir as ir

from qdqtune.qdq._dialect import Dialect, OpRule, Output, QuantFormat
from qdqtune.qdq._encoding import TensorFormat

_INT8 = TensorFormat(ir.DataType.INT8, -127, 127, symmetric=True)
_FLOAT8 = TensorFormat(ir.DataType.FLOAT8E4M3FN, -448, 448, symmetric=True)

_WEIGHTED = OpRule(inputs=(0, 1), weight=1, output=Output.FLOAT)
# Pooling other than MaxPool doesn't commute with Q/DQ: it needs both sides.
_AVERAGE = OpRule(output=Output.REQUIRED)
# A residual Add fuses into the Conv before it; only the other branch is quantized.
_ADD = OpRule(inputs=(0, 1), output=Output.FLOAT, joins_producer=True)
_RULES = {
    "Conv": _WEIGHTED,
    "Gemm": _WEIGHTED,
    "MatMul": _WEIGHTED,
    "Add": _ADD,
    "Mul": OpRule(inputs=(0, 1), output=Output.FLOAT),
    "MaxPool": OpRule(output=Output.FLOAT),
    "Resize": OpRule(output=Output.FLOAT),
    # Under one scale it only moves bytes; otherwise every operand is requantized.
    "Concat": OpRule(inputs=None, output=Output.FLOAT, same_scale=True),
    "AveragePool": _AVERAGE,
    "GlobalAveragePool": _AVERAGE,
}
_RULES_8 = {**_RULES, "ConvTranspose": _WEIGHTED}
# What follows was seen in the layer lists of TensorRT-RTX 1.7 builds. ConvTranspose is missing: it
# is computed in floats whatever surrounds it and along whichever axis it is scaled. A Conv of 4
# values at batch 1 is fused into a kernel that reads floats and quantizes them itself. A window of
# 4x8 has a float8 kernel, 1x33 has none.
_MULTIPLIED = OpRule(inputs=(0, 1), weight=1, output=Output.FLOAT, whole_when_parted=True)
_RULES_10 = {
    **_RULES,
    "Conv": OpRule(inputs=(0, 1), weight=1, output=Output.FLOAT, least_elements=5),
    "Gemm": _MULTIPLIED,
    "MatMul": _MULTIPLIED,
}
_INT8_FORMAT = QuantFormat(_INT8, _INT8, least_opset=13)
_FLOAT8_FORMAT = QuantFormat(_FLOAT8, _FLOAT8, least_opset=19, most_taps=32)

TENSORRT = Dialect(
    name="tensorrt",
    summary="TensorRT 10 and later: symmetric int8 or fp8, weights stored quantized, float biases",
    formats={"int8": _INT8_FORMAT, "fp8": _FLOAT8_FORMAT},
    rules=_RULES_10,
    writes_either=True,
)

TENSORRT_8 = Dialect(
    name="tensorrt-8",
    summary="TensorRT before 10: symmetric int8, float weights behind Q and DQ, float biases",
    formats={"int8": _INT8_FORMAT},
    rules=_RULES_8,
    stored_weights=False,
    writes_either=True,
)
