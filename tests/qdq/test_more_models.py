"""Models that textbooks don't have, through insert and strip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._quantization_planner import select_ops, select_tensors
from qdqtune.qdq._read_back import read, strip
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import Ranges
from tests.conftest import model_from_text


def inserter_for(
    proto: onnx.ModelProto, folder: Path, dialect: str = "onnxruntime", high: float = 3.0
) -> Inserter:
    model = ir.from_proto(proto)
    fold(model)
    base = PreparedModel(model, folder)
    ranges = Ranges(dict.fromkeys(base.index.value, (0.0, high)))
    return Inserter(base, DIALECTS[dialect], "int8", ranges)


def test_names_inside_bodies_are_not_taken_twice(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,4] x, bool c) => (float[1,4] y) {
            h = MatMul(x, w)
            y = If(c) <
                then_branch = t () => (float[1,4] h_scale) { h_scale = Relu(h) },
                else_branch = e () => (float[1,4] h_quantized) { h_quantized = Neg(h) }
            >
        }""",
        w=np.eye(4, dtype=np.float32),
    )
    inserter = inserter_for(proto, tmp_path)
    placement = select_ops(inserter.index, inserter.dialect, ["MatMul"]).placement
    path = inserter.write(placement | Placement.of(outputs=["h"]), "m")
    onnx.checker.check_model(str(path), full_check=True)
    candidate = load_model(path)
    strip(candidate, weights_from=inserter.index.model)
    assert fingerprint(candidate) == fingerprint(inserter.index.model)


def test_a_shared_bias_gets_one_encoding_per_input_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    proto = model_from_text(
        """
        g (float[1,4,3,3] x) => (float[1,4,3,3] y) {
            a = Conv(x, w, b)
            r = Neg(a)
            c = Conv(r, w, b)
            y = Neg(c)
        }""",
        w=rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
        b=rng.normal(size=4).astype(np.float32),
    )
    model = ir.from_proto(proto)
    fold(model)
    base = PreparedModel(model, tmp_path)
    ranges = Ranges({"x": (0, 1), "a": (0, 2), "r": (-2, 0), "c": (0, 4), "y": (-4, 0)})
    inserter = Inserter(base, DIALECTS["onnxruntime"], "int8", ranges)
    both = select_ops(inserter.index, inserter.dialect, ["Conv"]).placement
    written = inserter.proto(both)
    assert sum(tensor.data_type == onnx.TensorProto.INT32 and "quantized" in tensor.name
               for tensor in written.graph.initializer) == 2  # fmt: skip
    candidate = ir.from_proto(written)
    ir.external_data.set_base_dir(candidate.graph, str(tmp_path))
    assert read(candidate).placement == canonical(inserter.index, both)
    # Names don't depend on what was written before.
    later = Inserter(base, DIALECTS["onnxruntime"], "int8", ranges)
    later.proto(Placement.of([("w", "n2", 1)]))
    assert later.serialized(both) == inserter.serialized(both)


def test_tiny_half_precision_values_keep_a_scale(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float16[1,8] x) => (float16[1,4] y) { h = MatMul(x, w) y = Relu(h) }",
        opset=19,
        w=np.full((8, 4), 1e-6, np.float16),
    )
    proto.ir_version = 9
    inserter = inserter_for(proto, tmp_path, "tensorrt", high=1e-5)
    placement = select_ops(inserter.index, inserter.dialect, ["MatMul"]).placement
    model = inserter.model(placement)
    for name in ("x_scale", "w_scale"):
        scale = model.graph.initializers[name].const_value.numpy()
        assert scale.dtype == np.float16
        assert (scale > 0).all()


def test_onnxruntime_has_no_integer_kernels_for_half_precision(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float16[1,8] x) => (float16[1,4] y) { y = MatMul(x, w) }",
        w=np.ones((8, 4), np.float16),
    )
    inserter = inserter_for(proto, tmp_path)
    left = select_ops(inserter.index, inserter.dialect, ["MatMul"]).left_float
    assert "float16" in left["n0"]


def test_infinite_constants_are_left_alone(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (bool[4] k, float[2,4] x) => (float[2,4] y) { h = Where(k, x, w) y = Neg(h) }",
        w=np.array(-np.inf, np.float32),
    )
    inserter = inserter_for(proto, tmp_path)
    left = select_ops(inserter.index, inserter.dialect, ["Where"]).left_float
    assert "infinite" in left["n0"]
    with pytest.raises(UsageError, match="infinite"):
        inserter.proto(Placement.of([("w", "n0", 2)]))


def test_a_bias_by_name_that_is_no_channel_bias(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[3,8] x) => (float[3,5] y) { h = Gemm(x, w, b) y = Neg(h) }",
        w=np.ones((8, 5), np.float32),
        b=np.ones((3, 5), np.float32),
    )
    inserter = inserter_for(proto, tmp_path)
    selection = select_tensors(inserter.index, inserter.dialect, ["b"])
    path = inserter.write(selection.placement, "m")
    onnx.checker.check_model(str(path), full_check=True)


def test_weights_that_are_also_inputs_are_folded_and_quantized(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    residual.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in residual.graph.initializer
    )
    inserter = inserter_for(residual, tmp_path)
    assert [node.op_type for node in inserter.index.nodes] == ["Conv", "Relu", "Conv", "Add"]
    written = inserter.proto(select_ops(inserter.index, inserter.dialect, ["Conv"]).placement)
    assert [value.name for value in written.graph.input] == ["x"]


def test_constants_in_the_old_tensorrt_dialect_stay_float(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[1,4] x) => (float[1,4] y) { h = Add(x, c) y = Neg(h) }",
        c=np.ones(4, np.float32),
    )
    inserter = inserter_for(proto, tmp_path, "tensorrt-8")
    written = inserter.proto(select_ops(inserter.index, inserter.dialect, ["Add"]).placement)
    assert "c" in {tensor.name for tensor in written.graph.initializer}
    assert "QuantizeLinear" in {node.op_type for node in written.graph.node if "c" in node.input}


def test_a_variant_can_not_leave_its_folder(residual: onnx.ModelProto, tmp_path: Path) -> None:
    inserter = inserter_for(residual, tmp_path)
    for name in ("/etc/x", "../x", "a/b"):
        with pytest.raises(ValueError, match="plain file name"):
            inserter.write(Placement(), name)


def test_output_bits_of_another_model_are_refused(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="names the tensor 'nope'"):
        inserter_for(residual, tmp_path).proto(Placement.of(outputs=["nope"]))
