"""Scales that came with a model are kept, in every dialect that can express them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.graph._files import load_model
from qdqtune.graph._index import name_nodes
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._encoding import ReadEncoding, dequantize, given_activation, given_weight, quantize
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import translate
from qdqtune.qdq._read_back import read, strip
from qdqtune.qdq.dialects import DIALECTS, ONNXRUNTIME, ONNXRUNTIME_NO_VNNI, TENSORRT, TENSORRT_8
from qdqtune.records._ranges import Ranges
from tests.conftest import model_from_text
from tests.models import draw_placement, small_models

INT8, UINT8 = ir.DataType.INT8, ir.DataType.UINT8


def encoding(
    dtype: ir.DataType, scale: object, zero_point: object = None, axis: int = 1
) -> ReadEncoding:
    points = None if zero_point is None else np.asarray(zero_point, dtype.numpy())
    return ReadEncoding(dtype, np.asarray(scale, np.float32), points, axis)


@given(
    dtype=st.sampled_from([INT8, UINT8]),
    offset=st.integers(0, 255),
    scale=st.floats(2.0**-20, 1024, width=32),
)
def test_an_unsymmetric_format_keeps_every_step(
    dtype: ir.DataType, offset: int, scale: float
) -> None:
    low = -128 if dtype == INT8 else 0
    read_as = encoding(dtype, scale, low + offset)
    written = given_activation(read_as, ONNXRUNTIME.formats["int8"].activation, ir.DataType.FLOAT)
    assert written is not None
    assert written.scale == np.float32(scale)
    assert int(written.zero_point) == offset
    steps = np.arange(256)
    theirs = dequantize((steps + low).astype(dtype.numpy()), read_as.scale, read_as.zero_point, 0)
    ours = dequantize(steps.astype(np.uint8), written.scale, written.zero_point, 0)
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize(
    ("read_as", "scale"),
    [
        pytest.param(encoding(INT8, 0.1, 0), 0.1, id="symmetric"),
        pytest.param(encoding(INT8, 0.1), 0.1, id="no zero point"),
        pytest.param(encoding(UINT8, 0.1, 128), 0.1, id="symmetric in uint8"),
        pytest.param(encoding(UINT8, 0.1, 0), 0.1 * 255 / 127, id="positive"),
        pytest.param(encoding(INT8, [0.1, 0.2], [0, 0]), 0.2 * 128 / 127, id="per channel"),
    ],
)
def test_a_symmetric_format_keeps_the_scale_or_the_range(
    read_as: ReadEncoding, scale: float
) -> None:
    written = given_activation(read_as, TENSORRT.formats["int8"].activation, ir.DataType.FLOAT)
    assert written is not None
    assert int(written.zero_point) == 0
    assert float(written.scale) == pytest.approx(scale)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, []])
def test_scales_that_are_none_are_not_taken(scale: object) -> None:
    read_as = encoding(INT8, scale)
    layout = TENSORRT.formats["int8"]
    assert given_activation(read_as, layout.activation, ir.DataType.FLOAT) is None
    assert given_weight(read_as, np.ones((2, 2)), 1, layout.weight) is None


def test_an_int32_bias_tells_no_range() -> None:
    layout = TENSORRT.formats["int8"].activation
    assert given_activation(encoding(ir.DataType.INT32, 0.1), layout, ir.DataType.FLOAT) is None


def test_weights_keep_scales_and_saturation() -> None:
    values = np.array([[2.0, -2.0], [0.5, 0.1]], np.float32)
    read_as = encoding(INT8, [0.01, 0.02], [0, 0], axis=1)
    written = given_weight(read_as, values, 1, TENSORRT.formats["int8"].weight)
    assert written is not None
    np.testing.assert_array_equal(quantize(values, written), [[127, -100], [50, 5]])


def test_weights_lose_a_bit_where_kernels_saturate() -> None:
    values = np.array([[1.27]], np.float32)
    layout = ONNXRUNTIME_NO_VNNI.formats["int8"].weight
    written = given_weight(encoding(INT8, 0.01, 0), values, 1, layout)
    assert written is not None
    assert float(written.scale) == pytest.approx(0.01 * 127 / 64)
    assert quantize(values, written) == [64]
    kept = given_weight(encoding(INT8, 0.02, 0), values, 1, layout)
    assert kept is not None
    assert float(kept.scale) == np.float32(0.02)


@pytest.mark.parametrize(
    "read_as",
    [
        pytest.param(encoding(INT8, [0.1, 0.2], [0, 0], axis=0), id="another axis"),
        pytest.param(encoding(UINT8, 0.1, 3), id="zero point"),
        pytest.param(
            ReadEncoding(ir.DataType.FLOAT8E4M3FN, np.float32(0.1), None, 1), id="another type"
        ),
    ],
)
def test_weights_in_other_ways_are_encoded_anew(read_as: ReadEncoding) -> None:
    assert given_weight(read_as, np.ones((2, 2)), 1, TENSORRT.formats["int8"].weight) is None


def fake_quantized(between: str = "") -> onnx.ModelProto:
    """A linear layer as exporters write it: the weight's Q and DQ, then a Transpose."""
    return model_from_text(
        f"""
        g (float[2,4] x) => (float[2,3] y) {{
            xq = QuantizeLinear(x, xs, xz)
            {"xc = Clip(xq, low, high)" if between else ""}
            xd = DequantizeLinear({"xc" if between else "xq"}, xs, xz)
            wq = QuantizeLinear<axis=0>(w, ws, wz)
            wd = DequantizeLinear<axis=0>(wq, ws, wz)
            wt = Transpose<perm=[1,0]>(wd)
            y = MatMul(xd, wt)
        }}""",
        xs=np.float32(0.03), xz=np.array(0, np.int8),
        low=np.array(-127, np.int8), high=np.array(127, np.int8),
        w=np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        ws=np.array([0.01, 0.02, 0.03], np.float32), wz=np.zeros(3, np.int8),
    )  # fmt: skip


@pytest.mark.parametrize("between", ["", "Clip"])
def test_a_transposed_weight_keeps_its_scales(between: str) -> None:
    proto = fake_quantized(between)
    model = ir.from_proto(proto)
    name_nodes(model)
    reading = strip(model)
    assert [node.op_type for node in model.graph] == ["MatMul"]
    matmul = model.graph[0].name
    assert reading.placement.edges == {("x", matmul, 0), ("wt", matmul, 1)}
    assert reading.encodings["wt"].axis == 1
    np.testing.assert_array_equal(
        reading.encodings["wt"].scale, [np.float32(v) for v in (0.01, 0.02, 0.03)]
    )
    assert reading.rounded == 0


@pytest.mark.parametrize("dialect", [TENSORRT, TENSORRT_8])
def test_learned_scales_are_written_as_they_are(dialect: object, tmp_path: Path) -> None:
    model = ir.from_proto(fake_quantized())
    name_nodes(model)
    infer_shapes(model)
    reading = strip(model)
    base = PreparedModel(model, tmp_path)
    selection = translate(base.index, dialect, "int8", reading.placement)
    inserter = Inserter(base, dialect, "int8", Ranges(), reading.encodings)
    again = read(inserter.model(selection.placement))
    assert again.placement == reading.placement
    for name, expected in reading.encodings.items():
        if name in again.encodings:
            np.testing.assert_array_equal(again.encodings[name].scale, expected.scale)
    assert {"x", "wt"} <= set(again.encodings)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@given(data=st.data(), proto=small_models())
def test_a_file_written_again_is_the_same(
    dialect: object, data: st.DataObject, proto: onnx.ModelProto
) -> None:
    """insert, read, insert again with the scales that were read: equal encodings."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        model = ir.from_proto(proto)
        name_nodes(model)
        infer_shapes(model)
        base = PreparedModel(model, Path(first))
        ranges = Ranges(dict.fromkeys(base.index.value, (-2.0, 3.0)))
        inserter = Inserter(base, dialect, "int8", ranges)
        placement = draw_placement(data.draw, base.index, dialect)
        stripped = load_model(inserter.write(placement, "candidate"))
        reading = strip(stripped)
        if not reading.pairs:
            return
        infer_shapes(stripped)
        again = Inserter(
            PreparedModel(stripped, Path(second)), dialect, "int8", Ranges(), reading.encodings
        )
        found = read(again.model(reading.placement))
        assert found.placement == reading.placement
        for name, expected in reading.encodings.items():
            np.testing.assert_array_equal(found.encodings[name].scale, expected.scale)
            np.testing.assert_array_equal(found.encodings[name].zero_point, expected.zero_point)


@pytest.mark.parametrize(
    ("scale", "op_type"), [(6.0 / 255, "Clip"), (0.1, "Relu")], ids=["six", "any"]
)
def test_an_activation_that_saturation_stood_for_is_put_back(scale: float, op_type: str) -> None:
    proto = model_from_text(
        """
        g (float[2,3] x) => (float[2,3] y) {
            h = MatMul(x, w)
            q = QuantizeLinear(h, s, z)
            d = DequantizeLinear(q, s, z)
            y = MatMul(d, w)
        }""",
        w=np.eye(3, dtype=np.float32), s=np.float32(scale), z=np.array(0, np.uint8),
    )  # fmt: skip
    model = ir.from_proto(proto)
    strip(model)
    assert [node.op_type for node in model.graph] == ["MatMul", op_type, "MatMul"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_half_scales_are_kept() -> None:
    scale = np.asarray(0.1, ml_dtypes.bfloat16)
    read_as = ReadEncoding(INT8, scale, np.array(0, np.int8), 1)
    layout = TENSORRT.formats["int8"].activation
    written = given_activation(read_as, layout, ir.DataType.BFLOAT16)
    assert written is not None
    assert written.scale.astype(ml_dtypes.bfloat16) == scale
