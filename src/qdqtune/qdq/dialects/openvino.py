"""OpenVINO on CPUs: uint8 activations, int8 per-channel weights, float biases."""

from __future__ import annotations

from dataclasses import replace

from qdqtune.qdq.dialects.onnxruntime import ONNXRUNTIME, ONNXRUNTIME_NO_VNNI

OPENVINO = replace(
    ONNXRUNTIME,
    name="openvino",
    summary="uint8 activations, 8-bit int8 per-channel weights",
)

OPENVINO_NO_VNNI = replace(
    ONNXRUNTIME_NO_VNNI,
    name="openvino-novnni",
    summary="the same with 7-bit weights: u8*s8 kernels saturate on x86 without VNNI",
)
