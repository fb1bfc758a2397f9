"""OpenVINO on CPUs: uint8 activations, int8 per-channel weights, Q/DQ on the inputs of ops.

A result is requantized inside the kernel where all its readers want it quantized, so that no Q is
asked for behind an op. What needs one less conversion that way: a SiLU between Convs, a LayerNorm
behind a MatMul. Seen with OpenVINO 2026.4 on AVX-512, Convs and MatMuls quantized, over float:
EfficientNet 1.47 with Q/DQ on inputs and 0.98 with whole units, ConvNeXt 1.73 and 1.55.

Ops that are missing have no integer kernel, or one that loses whatever surrounds it: with Mul, a
YOLO went from 2.07 to 1.59 over float, with Sigmoid to 1.72. An AveragePool of integers is rounded
to integers, and counts zero points as zeros where it counts padding.
"""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from qdqtune.qdq._dialect import Dialect, OpRule, Output, QuantFormat
from qdqtune.qdq._encoding import TensorFormat

_UINT8 = TensorFormat(ir.DataType.UINT8, 0, 255, symmetric=False)
# A product of two activations is an integer kernel only if the second has no zero point. Seen with
# a BERT, everything multiplied in integers: 2.53 over float with none, 2.17 with one.
_INT8_OPERAND = TensorFormat(ir.DataType.INT8, -128, 127, symmetric=True)
_INT8_WEIGHT = TensorFormat(ir.DataType.INT8, -127, 127, symmetric=True)
# The largest that sums of two products may hold in int16, see the dialects of ONNX Runtime.
_INT7_OPERAND = TensorFormat(ir.DataType.INT8, -64, 64, symmetric=True)
_INT7_WEIGHT = TensorFormat(ir.DataType.INT8, -64, 64, symmetric=True)

_WEIGHTED = OpRule(inputs=(0, 1), weight=1, output=Output.FLOAT)
_MOVES = (
    "Flatten", "MaxPool", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
_RULES = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), _WEIGHTED),
    # A constant is added inside the kernel before. Seen in 2026.4: a quantized bias behind a MatMul
    # ends the process with a division by zero, and a quantized table of positions is refused.
    "Add": OpRule(inputs=(0, 1), output=Output.FLOAT, activations_only=True, same_shapes=True),
    "GlobalAveragePool": OpRule(output=Output.FLOAT),
    # With a scale of its own, every operand would be requantized to that of the result.
    "Concat": OpRule(inputs=None, same_scale=True, activations_only=True, axis=1),
    "Resize": OpRule(same_scale=True, mode="nearest"),
    **dict.fromkeys(_MOVES, OpRule(same_scale=True)),
}

OPENVINO = Dialect(
    name="openvino",
    summary="uint8 activations, 8-bit int8 per-channel weights, Q/DQ on inputs, float biases",
    formats={"int8": QuantFormat(_UINT8, _INT8_WEIGHT, least_opset=13, operand=_INT8_OPERAND)},
    rules=_RULES,
    fused_activations=frozenset({"Relu", "Clip"}),
    batched_weight_axes=False,
    # With bfloat16 scales it was 2.4 times slower than float, and the outputs were garbage.
    float_types=frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16}),
    propagates_dq=True,
    # Seen with OpenVINO 2026.4 on AVX-512: 128 rows by 768x3072 took 2.2 ms with nothing but the
    # weights quantized, 1.1 with both operands, 4.3 as float; one row is as fast as with both.
    weights_only=frozenset({"Gemm", "MatMul"}),
    # The CPU plugin quantizes the input of such ops in groups of 32 values, unless
    # DYNAMIC_QUANTIZATION_GROUP_SIZE says otherwise. Seen with 2026.4 on AVX-512 VNNI: a BERT of 4
    # layers, 384 wide, was 2.01 over float32 and 1.16 over bfloat16, the default there; 0.97 and
    # 0.92 with groups of 0, which means floats.
    dynamic_by_engine=frozenset({"Gemm", "MatMul"}),
)

OPENVINO_NO_VNNI = replace(
    OPENVINO,
    name="openvino-novnni",
    summary="the same with 7-bit weights: u8*s8 kernels saturate on x86 without VNNI",
    dynamic_by_engine=frozenset(),  # its source asks for VNNI; not seen on such a CPU
    formats={"int8": QuantFormat(_UINT8, _INT7_WEIGHT, least_opset=13, operand=_INT7_OPERAND)},
)
