"""What an inserted model looks like, and what can't be inserted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.qdq.dialects import DIALECTS, dialect_named
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource, Ranges
from tests.conftest import model_from_text


def make(proto: onnx.ModelProto, dialect: str, quant_type: str, folder: Path) -> Inserter:
    model = ir.from_proto(proto)
    fold(model)
    base = PreparedModel(model, folder)
    ranges = Ranges(dict.fromkeys(base.index.value, (0.0, 3.0)), CalibrationSource.DATA, 1)
    return Inserter(base, dialect_named(dialect), quant_type, ranges)


def initializers(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def test_onnxruntime_stores_int8_weights_and_int32_biases(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    inserter = make(residual, "onnxruntime", "int8", tmp_path)
    written = inserter.proto(select_ops(inserter.index, inserter.dialect, ["Conv"]).placement)
    tensors = initializers(written)
    assert tensors["w2_quantized"].data_type == onnx.TensorProto.INT8
    assert tensors["b2_quantized"].data_type == onnx.TensorProto.INT32
    assert list(tensors["w2_scale"].dims) == [4]
    assert "w2" not in tensors
    forced = numpy_helper.to_array(tensors["b2_scale"])
    input_scale = numpy_helper.to_array(tensors["r1_scale"])
    weight_scale = numpy_helper.to_array(tensors["w2_scale"])
    np.testing.assert_allclose(forced, input_scale * weight_scale, rtol=1e-6)


def test_tensorrt_stores_weights_from_10_on_and_not_before(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    for dialect, stored in (("tensorrt", True), ("tensorrt-8", False)):
        inserter = make(residual, dialect, "int8", tmp_path)
        written = inserter.proto(select_ops(inserter.index, inserter.dialect, ["Conv"]).placement)
        tensors = initializers(written)
        assert ("w2_quantized" in tensors) == stored
        assert ("w2" in tensors) != stored
        assert tensors["b2"].data_type == onnx.TensorProto.FLOAT
        for name, tensor in tensors.items():
            if name.endswith("_zero_point"):
                assert not numpy_helper.to_array(tensor).any()


def test_fp8(residual: onnx.ModelProto, tmp_path: Path) -> None:
    from qdqtune.graph._opset import raise_opset

    model = ir.from_proto(residual)
    dialect = DIALECTS["tensorrt"]
    assert raise_opset(model, dialect.formats["fp8"].least_opset)
    inserter = make(ir.to_proto(model), "tensorrt", "fp8", tmp_path)
    path = inserter.write(select_ops(inserter.index, dialect, ["Conv"]).placement, "m")
    onnx.checker.check_model(str(path), full_check=True)
    tensors = initializers(onnx.load(path, load_external_data=False))
    assert tensors["w2_quantized"].data_type == onnx.TensorProto.FLOAT8E4M3FN


def test_passthrough_ops_share_the_scale_of_their_input(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,4,4,4] x) => (float[1,4,2,2] y) {
            c = Conv(x, w)
            p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)
            y = Conv(p, w)
        }""",
        w=np.ones((4, 4, 1, 1), np.float32),
    )
    model = ir.from_proto(proto)
    fold(model)
    base = PreparedModel(model, tmp_path)
    ranges = Ranges({"x": (0, 1), "c": (-2, 7), "p": (-1, 7), "y": (0, 1)})
    inserter = Inserter(base, DIALECTS["onnxruntime"], "int8", ranges)
    selection = select_ops(inserter.index, inserter.dialect, ["Conv", "MaxPool"])
    tensors = initializers(inserter.proto(selection.placement))
    assert numpy_helper.to_array(tensors["p_scale"]) == numpy_helper.to_array(tensors["c_scale"])


def test_graph_inputs_and_outputs_keep_their_names(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    inserter = make(residual, "onnxruntime", "int8", tmp_path)
    placement = select_ops(inserter.index, inserter.dialect, ["Conv", "Add"]).placement
    written = inserter.proto(placement)
    assert [value.name for value in written.graph.input] == ["x"]
    assert [value.name for value in written.graph.output] == ["y"]
    assert written.graph.node[-1].output[0] == "y"
    assert written.graph.node[-1].op_type == "DequantizeLinear"


def test_the_file_says_how_it_was_made(residual: onnx.ModelProto, tmp_path: Path) -> None:
    inserter = make(residual, "onnxruntime", "int8", tmp_path)
    facts = {p.key: p.value for p in inserter.proto(Placement()).metadata_props}
    assert facts["qdqtune.calibration"] == "data"
    assert facts["qdqtune.dialect"] == "onnxruntime"


def test_candidates_are_small_whatever_the_weights(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[1,512] x) => (float[1,512] y) { y = MatMul(x, w) }",
        w=np.ones((512, 512), np.float32),
    )
    inserter = make(proto, "onnxruntime", "int8", tmp_path)
    selection = select_ops(inserter.index, inserter.dialect, ["MatMul"])
    assert inserter.write(selection.placement, "m").stat().st_size < 4000


def test_names_that_are_taken_are_avoided(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,4,2,2] x) => (float[1,4,2,2] y) {
            x_scale = Neg(x)
            x_dequantized = Conv(x, w)
            y = Add(x_scale, x_dequantized)
        }""",
        w=np.ones((4, 4, 1, 1), np.float32),
    )
    inserter = make(proto, "onnxruntime", "int8", tmp_path)
    path = inserter.write(select_ops(inserter.index, inserter.dialect, ["Conv"]).placement, "m")
    onnx.checker.check_model(str(path), full_check=True)


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        (Placement.of([("nope", "n0", 0)]), "names the tensor 'nope'"),
        (Placement.of([("x", "n4", 0)]), "which it is not"),
        (Placement.of([("b2", "n3", 2)]), "can't be quantized without its input"),
    ],
)
def test_placements_of_other_models_are_refused(
    placement: Placement, message: str, residual: onnx.ModelProto, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        make(residual, "onnxruntime", "int8", tmp_path).proto(placement)


def test_a_tensor_without_range_is_refused(residual: onnx.ModelProto, tmp_path: Path) -> None:
    model = ir.from_proto(residual)
    fold(model)
    inserter = Inserter(
        PreparedModel(model, tmp_path), DIALECTS["onnxruntime"], "int8", Ranges({"x": (0, 1)})
    )
    with pytest.raises(UsageError, match="No range is known"):
        inserter.proto(Placement.of(outputs=["r1"]))


def test_unknown_dialects_and_quant_types() -> None:
    with pytest.raises(UsageError, match="Did you mean tensorrt"):
        dialect_named("tensort")
    with pytest.raises(UsageError, match="no quant type 'fp8'"):
        DIALECTS["onnxruntime"].format_of("fp8")
