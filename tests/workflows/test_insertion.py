"""Quantized right: what the engine computes is what the file says, and close to float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from qdqtune import zoo
from qdqtune._command_configs import ConvertConfig
from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import AS_WRITTEN
from qdqtune.engines._worker import Worker
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._precision import Precision
from qdqtune.records._ranges import CalibrationSource, RangeMethod
from qdqtune.workflows._convert import convert_model
from qdqtune.workflows._insert import insert
from tests.conftest import model_from_text

WEIGHTED = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
SMALL: dict[str, dict[str, object]] = {
    "resnet18": {"width": 16, "image": 64},
    "resnet34": {"width": 16, "image": 64},
    "resnet50": {"width": 16, "image": 64},
    "mobilenet_v2": {"image": 64},
    "efficientnet": {"image": 64},
    "shufflenet_v2": {"image": 64},
    "convnext": {"image": 64, "depths": (1, 1, 1, 1)},
    "vit": {"layers": 2, "width": 64, "image": 64},
    "bert": {"layers": 2, "width": 64, "sequence": 16, "vocabulary": 200},
    "gpt": {"layers": 2, "width": 64, "sequence": 16, "vocabulary": 200},
    "unet": {"image": 32},
    "yolo": {"image": 64},
}


def optimized_ops(worker: Worker, path: Path, folder: Path) -> list[str]:
    target = folder / "optimized.onnx"
    worker.release(worker.open(path, SessionOptions(optimized_model_path=str(target))))
    return [node.op_type for node in onnx.load(target, load_external_data=False).graph.node]


def test_resnet18_with_and_without_the_engines_optimizations(tmp_path: Path) -> None:
    source, quantized = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(zoo.build("resnet18"), source)
    report = insert(source, quantized, ops=["Conv", "Gemm"])
    assert report.sqnr_db["logits"] >= 20.0

    index = GraphIndex(ir.load(source))
    agreement = SignalToNoise()
    with Worker() as worker:
        fused, plain = worker.open(quantized), worker.open(quantized, AS_WRITTEN)
        for feeds in random_inputs(index, 2, InputRequest(seed=5)):
            agreement.add(worker.run(plain, feeds), worker.run(fused, feeds))
    assert agreement.decibels()["logits"] >= 40.0


def test_every_conv_of_resnet18_becomes_an_integer_kernel(tmp_path: Path) -> None:
    source, quantized = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(zoo.build("resnet18", **SMALL["resnet18"]), source)
    insert(source, quantized, ops=["Conv", "Gemm"])
    with Worker() as worker:
        ops = optimized_ops(worker, quantized, tmp_path)
    assert ops.count("QLinearConv") == 20
    assert ops.count("QGemm") == 1
    assert "Conv" not in ops
    assert "FusedConv" not in ops


FORMATS = [(name, kind) for name, dialect in DIALECTS.items() for kind in dialect.formats]
# In `make test` every architecture has one, and every one has an architecture.
PAIRS = [
    pytest.param(name, *form, marks=() if (row - column) % len(FORMATS) == 0 else pytest.mark.slow)
    for row, name in enumerate(SMALL)
    for column, form in enumerate(FORMATS)
]


@pytest.mark.parametrize(("name", "dialect", "quant_type"), PAIRS)
def test_every_architecture_in_every_dialect(
    name: str, dialect: str, quant_type: str, tmp_path: Path
) -> None:
    source, quantized = tmp_path / "float.onnx", tmp_path / "q.onnx"
    model = zoo.build(name, **SMALL[name])
    onnx.save(model, source)
    ops = sorted(WEIGHTED & {node.op_type for node in model.graph.node})
    report = insert(source, quantized, ops=ops, dialect=dialect, quant_type=quant_type)
    onnx.checker.check_model(str(quantized), full_check=True)
    assert report.quantized
    assert min(report.sqnr_db.values()) >= 5.0
    written = {tensor.name for tensor in onnx.load(quantized).graph.initializer}
    if DIALECTS[dialect].stored_weights:
        stored = {name for name in written if f"{name}_quantized" in written}
        assert not stored, "float copies of quantized weights"


def test_the_architectures_are_all_here() -> None:
    assert set(SMALL) == set(zoo.ARCHITECTURES) - {"chain"}


def test_half_precision_models_get_half_precision_scales(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model = model_from_text(
        "g (float16[1,8] x) => (float16[1,4] y) { h = MatMul(x, w) y = Relu(h) }",
        w=rng.normal(size=(8, 4)).astype(np.float16),
    )
    source, quantized = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(model, source)
    insert(source, quantized, ops=["MatMul"], dialect="tensorrt")
    onnx.checker.check_model(str(quantized), full_check=True)
    written = {tensor.name: tensor for tensor in onnx.load(quantized).graph.initializer}
    assert written["x_scale"].data_type == onnx.TensorProto.FLOAT16
    assert written["w_scale"].data_type == onnx.TensorProto.FLOAT16


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
@pytest.mark.parametrize(
    "first", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["on the way", "before"]
)
def test_what_is_not_quantized_can_be_half_floats(
    precision: Precision, first: bool, tmp_path: Path
) -> None:
    source, quantized = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(zoo.build("resnet18", **SMALL["resnet18"]), source)
    if first:
        convert_model(source, tmp_path / "half.onnx", ConvertConfig(to=precision))
        source = tmp_path / "half.onnx"
    report = insert(
        source, quantized, ops=["Conv"], dialect="tensorrt",
        high_precision_dtype=None if first else precision,
    )  # fmt: skip
    onnx.checker.check_model(str(quantized), full_check=True)
    assert len(report.quantized) == 20
    assert min(report.sqnr_db.values()) >= 15.0
    half = {Precision.FP16: onnx.TensorProto.FLOAT16, Precision.BF16: onnx.TensorProto.BFLOAT16}
    scales = [one for one in onnx.load(quantized).graph.initializer if one.name.endswith("_scale")]
    assert {scale.data_type for scale in scales} == {half[precision]}


def test_an_engine_without_half_kernels_is_told_what_to_do(tmp_path: Path) -> None:
    source, half = tmp_path / "float.onnx", tmp_path / "half.onnx"
    onnx.save(zoo.build("resnet18", **SMALL["resnet18"]), source)
    convert_model(source, half, ConvertConfig(to="fp16"))
    with pytest.raises(UsageError, match="float16") as caught:
        insert(half, tmp_path / "q.onnx", ops=["Conv"], dialect="onnxruntime")
    assert "--high_precision_dtype fp32" in caught.value.hint
    report = insert(
        half, tmp_path / "q.onnx", ops=["Conv"], dialect="onnxruntime",
        high_precision_dtype=Precision.FP32,
    )  # fmt: skip
    assert len(report.quantized) == 20


def test_calibration_data_is_what_counts(tmp_path: Path) -> None:
    source = tmp_path / "float.onnx"
    onnx.save(zoo.build("resnet18", **SMALL["resnet18"]), source)
    images = np.random.default_rng(0).normal(size=(6, 3, 64, 64)).astype(np.float32)
    reports = [
        insert(
            source, tmp_path / f"{factor}.onnx", ops=["Conv"], calibration_data=images * factor,
            calibration_method=RangeMethod.MAX,
        )
        for factor in (1, 100)
    ]  # fmt: skip
    assert all(report.calibration is CalibrationSource.DATA for report in reports)
    assert reports[0].calibrated_on.startswith("6 samples")
    scales = [
        numpy_helper.to_array(one)
        for factor in (1, 100)
        for one in onnx.load(tmp_path / f"{factor}.onnx").graph.initializer
        if one.name == "image_scale"
    ]
    np.testing.assert_allclose(scales[1], 100 * scales[0], rtol=1e-5)


def test_of_all_ways_to_calibrate_the_best_is_taken(tmp_path: Path) -> None:
    source = tmp_path / "float.onnx"
    onnx.save(zoo.build("resnet18", **SMALL["resnet18"]), source)
    images = np.random.default_rng(0).normal(size=(6, 3, 64, 64)).astype(np.float32)
    report = insert(source, tmp_path / "best.onnx", ops=["Conv"], calibration_data=images)
    assert set(report.tried_db) == {method.value for method in RangeMethod}
    assert report.tried_db[report.method.value] == max(report.tried_db.values())
    for method in RangeMethod:
        target = tmp_path / f"{method.value}.onnx"
        alone = insert(
            source, target, ops=["Conv"], calibration_data=images, calibration_method=method
        )
        assert alone.method is method
        assert alone.tried_db == {method.value: pytest.approx(report.tried_db[method.value])}
