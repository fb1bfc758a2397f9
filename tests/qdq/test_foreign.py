"""Q/DQ models that others wrote."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._folding import fold
from qdqtune.qdq._read_back import read, strip
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text


class Samples(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.left = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(3)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return {"x": self.left.pop()} if self.left else None


def assert_same_outputs(first: Path, second: Path) -> None:
    x = Samples().get_next()
    got, expected = (
        ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, x)[0]
        for path in (first, second)
    )
    np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("activation", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("per_channel", [True, False])
def test_what_quantize_static_wrote(
    activation: QuantType, per_channel: bool, residual_path: Path, tmp_path: Path
) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    model = load_model(residual_path)
    fold(model)
    source = save_model(model, tmp_path / "folded.onnx")
    target = tmp_path / "theirs.onnx"
    quantize_static(
        str(source), str(target), Samples(), quant_format=QuantFormat.QDQ, per_channel=per_channel,
        activation_type=activation, weight_type=QuantType.QInt8, op_types_to_quantize=["Conv"],
    )  # fmt: skip
    theirs = load_model(target)
    reading = read(theirs)
    tensors = {edge.tensor for edge in reading.placement.edges}
    assert {"x", "w1", "w2", "b2"} <= tensors
    assert reading.encodings["w2"].dtype == ir.DataType.INT8

    strip(theirs, weights_from=model)
    assert not {"QuantizeLinear", "DequantizeLinear"} & {node.op_type for node in theirs.graph}
    stripped = save_model(theirs, tmp_path / "stripped.onnx")
    assert_same_outputs(stripped, source)


def test_integer_ops_between_keep_their_q_and_dq() -> None:
    proto = model_from_text(
        """
        g (float[2,4] x) => (float[2,3] y) {
            q = QuantizeLinear(x, s, z)
            i = MatMulInteger(q, w, z)
            c = Cast<to=1>(i)
            y = Mul(c, s)
        }""",
        s=np.float32(0.1).reshape(()), z=np.array(0, np.uint8), w=np.ones((4, 3), np.uint8),
    )  # fmt: skip
    model = ir.from_proto(proto)
    assert strip(model).pairs == 0
    assert model.graph[0].op_type == "QuantizeLinear"


def test_scales_per_block_are_left_alone() -> None:
    proto = model_from_text(
        "g (float[1,8] x) => (float[1,4] y) {"
        " d = DequantizeLinear<axis=0, block_size=4>(w, s) y = MatMul(x, d) }",
        opset=21,
        w=np.ones((8, 4), np.int8),
        s=np.ones((2, 4), np.float32),
    )
    model = ir.from_proto(proto)
    reading = strip(model)
    assert (reading.pairs, reading.left) == (0, 1)
    assert [node.op_type for node in model.graph] == ["DequantizeLinear", "MatMul"]


def test_two_pairs_in_a_row_are_one_place() -> None:
    proto = model_from_text(
        """
        g (float[2] x) => (float[2] y) {
            a = QuantizeLinear(x, s, z)
            b = DequantizeLinear(a, s, z)
            c = QuantizeLinear(b, s, z)
            d = DequantizeLinear(c, s, z)
            y = Neg(d)
        }""",
        s=np.array(0.1, np.float32), z=np.array(0, np.int8),
    )  # fmt: skip
    model = ir.from_proto(proto)
    reading = strip(model)
    assert reading.placement.edges == {("x", "n4", 0)}
    assert [node.op_type for node in model.graph] == ["Neg"]


def test_a_quantized_input_that_is_also_an_output() -> None:
    proto = model_from_text(
        """
        g (float[2] x) => (float[2] y) {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }""",
        s=np.array(0.1, np.float32), z=np.array(0, np.int8),
    )  # fmt: skip
    model = ir.from_proto(proto)
    strip(model)
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == ["Identity"]
    assert proto.graph.output[0].name == "y"


def test_a_relu_that_was_left_to_saturation_comes_back(residual_path: Path, tmp_path: Path) -> None:
    logging.getLogger().setLevel(logging.ERROR)
    model = load_model(residual_path)
    fold(model)
    source = save_model(model, tmp_path / "folded.onnx")
    target = tmp_path / "theirs.onnx"
    quantize_static(
        str(source), str(target), Samples(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    theirs = load_model(target)
    assert "Relu" not in {node.op_type for node in theirs.graph}
    strip(theirs, weights_from=model)
    assert [node.op_type for node in theirs.graph].count("Relu") == 1
    stripped = save_model(theirs, tmp_path / "stripped.onnx")
    assert_same_outputs(stripped, source)


def test_scales_in_constant_nodes() -> None:
    proto = model_from_text(
        """
        g (float[2] x) => (float[2] y) {
            s = Constant<value_float=0.1>()
            z = Constant<value=int8 {0}>()
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            y = Neg(d)
        }"""
    )
    model = ir.from_proto(proto)
    assert strip(model).placement.edges == {("x", "n4", 0)}
    assert [node.op_type for node in model.graph] == ["Neg"]


def test_a_node_of_very_many_inputs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewiring takes the square of their number."""
    monkeypatch.setattr("qdqtune.qdq._read_back._MOST_INPUTS", 2)
    text = """g (float[4] x) => (float[12] y) <float s = {0.1}, int8 z = {0}> {
        q = QuantizeLinear(x, s, z)
        d = DequantizeLinear(q, s, z)
        y = Concat<axis=0>(d, d, d)
    }"""
    with pytest.raises(ModelError, match="has 3 inputs"):
        strip(ir.from_proto(model_from_text(text, 17)))
