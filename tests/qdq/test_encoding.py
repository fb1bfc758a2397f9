"""The arithmetic of scales and zero points."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from qdqtune.qdq._encoding import (
    TensorFormat,
    dequantize,
    encode_bias,
    encode_range,
    encode_weight,
    fit_bias,
    quantize,
)
from qdqtune.qdq.dialects import DIALECTS

ACTIVATIONS = {
    layout.activation for dialect in DIALECTS.values() for layout in dialect.formats.values()
}
WEIGHTS = {layout.weight for dialect in DIALECTS.values() for layout in dialect.formats.values()}
floats = st.floats(-1e6, 1e6, width=32)
UINT8 = TensorFormat(ir.DataType.UINT8, 0, 255, symmetric=False)
INT8 = TensorFormat(ir.DataType.INT8, -127, 127, symmetric=True)


@pytest.mark.parametrize("layout", sorted(ACTIVATIONS, key=str))
@given(first=floats, second=floats, inside=st.floats(0, 1))
def test_values_in_range_come_back_within_a_step(
    layout: TensorFormat, first: float, second: float, inside: float
) -> None:
    low, high = min(first, second), max(first, second)
    encoding = encode_range(low, high, layout)
    value = np.array([low + (high - low) * inside], np.float32)
    back = dequantize(quantize(value, encoding), encoding.scale, encoding.zero_point, 0)
    if layout.dtype == ir.DataType.FLOAT8E4M3FN:
        allowed = max(abs(float(value[0])) / 16, float(encoding.scale) * 2**-9)
    else:  # half a step, and as much again where the zero point was rounded
        allowed = float(encoding.scale) * 1.01
    assert abs(float(back[0] - value[0])) <= allowed * 1.001


@pytest.mark.parametrize("layout", sorted(ACTIVATIONS, key=str))
@given(first=floats, second=floats)
def test_zero_is_exact(layout: TensorFormat, first: float, second: float) -> None:
    encoding = encode_range(min(first, second), max(first, second), layout)
    zero = quantize(np.zeros(1, np.float32), encoding)
    assert dequantize(zero, encoding.scale, encoding.zero_point, 0)[0] == 0.0
    assert encoding.scale > 0


def test_a_relu_range_has_zero_point_zero() -> None:
    assert int(encode_range(0.0, 6.0, UINT8).zero_point) == 0


@pytest.mark.parametrize("layout", sorted(WEIGHTS, key=str))
@given(
    weight=hnp.arrays(np.float32, st.tuples(*[st.integers(1, 4)] * 3), elements=floats),
    axis=st.sampled_from([0, 1, 2, None]),
)
def test_weights_use_the_whole_format_and_no_more(
    layout: TensorFormat, weight: np.ndarray, axis: int | None
) -> None:
    encoding = encode_weight(weight, layout, axis)
    assert encoding.scale.shape == (() if axis is None else (weight.shape[axis],))
    steps = quantize(weight, encoding).astype(np.float64) - layout.center
    limit = layout.high - layout.center
    assert np.abs(steps).max() <= limit
    if np.abs(weight).max() > 1e-30:
        assert np.abs(steps).max() >= limit - 1


def test_seven_bits_cannot_saturate_int16() -> None:
    layout = DIALECTS["onnxruntime-novnni"].formats["int8"].weight
    assert 2 * 255 * layout.high <= np.iinfo(np.int16).max
    assert 2 * 255 * layout.low >= np.iinfo(np.int16).min


@given(
    values=hnp.arrays(np.float32, (3, 4), elements=st.floats(-20, 20, width=32)),
    axis=st.sampled_from([0, 1]),
)
def test_quantize_is_what_onnx_says(values: np.ndarray, axis: int) -> None:
    encoding = encode_weight(values, INT8, axis)
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], axis=axis)
    channels = values.shape[axis]
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 4]),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, [channels]),
         helper.make_tensor_value_info("z", TensorProto.INT8, [channels])],
        [helper.make_tensor_value_info("y", TensorProto.INT8, [3, 4])],
    )  # fmt: skip
    evaluator = ReferenceEvaluator(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    )
    feeds = {"x": values, "s": encoding.scale, "z": encoding.zero_point}
    np.testing.assert_array_equal(quantize(values, encoding), evaluator.run(None, feeds)[0])


def test_a_dead_channel_keeps_its_bias() -> None:
    weight = np.ones((2, 3), np.float32)
    weight[1] *= 1e-20
    bias = np.array([0.5, 0.7], np.float32)
    data = encode_range(0.0, 1.0, UINT8)
    own = encode_weight(weight, INT8, 0)
    encoding = encode_bias(bias, data, fit_bias(own, bias, data, ir.DataType.FLOAT))
    back = dequantize(quantize(bias, encoding), encoding.scale, encoding.zero_point, 0)
    np.testing.assert_allclose(back, bias, rtol=1e-4)
    naive = encode_bias(bias, data, own)
    lost = dequantize(quantize(bias, naive), naive.scale, naive.zero_point, 0)
    assert abs(lost[1] - bias[1]) > 0.5
