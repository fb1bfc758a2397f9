"""ONNX Runtime on CPUs: uint8 activations, int8 per-channel weights, int32 biases, whole units.

Every rule mirrors what its optimizer recognises: an op becomes an integer kernel when all its
inputs come from DequantizeLinear and all readers of its output are one QuantizeLinear.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from qdqtune.qdq._dialect import Dialect, OpRule, Output, QuantFormat
from qdqtune.qdq._encoding import TensorFormat

_UINT8 = TensorFormat(ir.DataType.UINT8, 0, 255, symmetric=False)
_INT8_WEIGHT = TensorFormat(ir.DataType.INT8, -127, 127, symmetric=True)
# 2 * 255 * 64 = 32640 is the largest sum of two u8*s8 products that int16 can hold: without VNNI
# the kernels add pairs of products in int16 and saturate.
_INT7_WEIGHT = TensorFormat(ir.DataType.INT8, -64, 64, symmetric=True)
_UINT8_WEIGHT = TensorFormat(ir.DataType.UINT8, 1, 255, symmetric=True, center=128)

_MOVES = (
    "Expand", "Flatten", "Gather", "GatherElements", "MaxPool", "Reshape", "Resize", "Slice",
    "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
_RULES = {
    "Conv": OpRule(inputs=(0, 1), weight=1, bias=2),
    "Gemm": OpRule(inputs=(0, 1), weight=1, bias=2, output=Output.USUAL),
    # Between Q/DQ pairs a Softmax becomes QLinearSoftmax, which is slower than the float one and
    # overflows where its inputs lie close together (seen in 1.31: 0.8 dB instead of 55).
    "MatMul": OpRule(
        inputs=(0, 1), weight=1, output=Output.USUAL, float_before=frozenset({"Softmax"})
    ),
    "Add": OpRule(inputs=(0, 1)),
    "Mul": OpRule(inputs=(0, 1)),
    "Concat": OpRule(inputs=None),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool"), OpRule()),
    **dict.fromkeys(("LeakyRelu", "Sigmoid", "Softmax"), OpRule()),
    "Where": OpRule(inputs=(1, 2)),
    **dict.fromkeys(_MOVES, OpRule(same_scale=True)),
}
_FUSED = frozenset({"Relu", "Clip"})

ONNXRUNTIME = Dialect(
    name="onnxruntime",
    summary="uint8 activations, 8-bit int8 per-channel weights, int32 biases, whole units",
    formats={
        "int8": QuantFormat(_UINT8, _INT8_WEIGHT, least_opset=13),
        "uint8": QuantFormat(_UINT8, _UINT8_WEIGHT, least_opset=13),
    },
    rules=_RULES,
    fused_activations=_FUSED,
    batched_weight_axes=False,
    float_types=frozenset({ir.DataType.FLOAT}),
    # Seen with ONNX Runtime 1.31 on AVX-512: one row by 1024x4096 took 0.19 ms with nothing but the
    # weights quantized, 0.24 with both operands, 0.59 as float; with 16 rows as long as float.
    weights_only=frozenset({"MatMul"}),
    # Between DQ and Q, ONNX Runtime quantizes a float weight itself, with one scale for all
    # channels. Seen with 1.31: a ResNet-50 of 160 pixels went from 3.04 to 3.32 over float with the
    # 3x3 Convs of two stages so.
    activations_only=frozenset({"Conv", "ConvTranspose", "Gemm"}),
    # DynamicQuantizeMatMul takes the bias along. Seen with 1.31 on AVX-512 VNNI, over float: 128
    # rows by 384x1536 3.4 times as fast, 3.0 between Q and DQ. ConvInteger has no such fusion.
    dynamic=frozenset({"Gemm", "LSTM", "MatMul"}),
    # Seen with 1.31 on AVX-512: SkipLayerNormalization takes several times as long as an Add and a
    # LayerNormalization. A BERT of 4 layers went from 2.05 to 2.59 over float without it.
    unfused_sums=True,
)

ONNXRUNTIME_NO_VNNI = replace(
    ONNXRUNTIME,
    name="onnxruntime-novnni",
    summary="the same with 7-bit weights: u8*s8 kernels saturate on x86 without VNNI",
    activations_only=frozenset(),  # it would take eight bits
    formats={
        **ONNXRUNTIME.formats,
        "int8": QuantFormat(_UINT8, _INT7_WEIGHT, least_opset=13),
    },
)
