"""A quantized model beside its float model, whatever both are given as."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import qdqtune
from qdqtune._command_configs import ConvertConfig
from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.graph._files import load_model
from qdqtune.records._accuracy import ErrorReport
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._ranges import CalibrationSource
from qdqtune.report._bench import error_text
from qdqtune.workflows._convert import convert_model
from qdqtune.workflows._insert import insert
from tests.conftest import model_from_text

MANY = """
g (float[N,8] x) => (float[N,8] y, int64[N] best, float[N,4] z) {
    h = MatMul(x, w1)
    r = Relu(h)
    y = MatMul(r, w2)
    best = ArgMax<axis=1,keepdims=0>(y)
    z = MatMul(r, w3)
}"""


def many() -> onnx.ModelProto:
    rng = np.random.default_rng(3)
    shapes = {"w1": (8, 16), "w2": (16, 8), "w3": (16, 4)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return model_from_text(MANY, **weights)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(6, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def files(rows: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("compare")
    original, quantized = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(many(), original)
    insert(original, quantized, ops=["MatMul"], engine="openvino", calibration_data=rows)
    return original, quantized


@pytest.fixture(scope="module")
def report(files: tuple[Path, Path], rows: np.ndarray) -> ErrorReport:
    return qdqtune.compare(*files, data=rows)


def test_outputs_and_layers(
    report: ErrorReport, files: tuple[Path, Path], rows: np.ndarray
) -> None:
    assert report.as_written
    assert report.source is CalibrationSource.DATA
    assert report.samples == "6 samples from arrays"
    assert {layer.own.op_type for layer in report.layers} == {"MatMul"}
    assert [layer.own.tensor for layer in report.layers] == ["h", "y", "z"]
    assert all(20 < layer.own.sqnr_db < 60 for layer in report.layers)
    worst = [layer.own.sqnr_db for layer in report.worst_first]
    assert worst == sorted(worst)
    results = [outputs_of(path, rows) for path in files]
    for output in report.outputs:
        expected, actual = (result[output.name].astype(float) for result in results)
        if output.name == "best":
            assert output.error is None
            assert output.equal == np.mean(expected == actual)
        else:
            assert output.error is not None
            noise = ((actual - expected) ** 2).sum()
            assert output.error.noise == pytest.approx(noise, rel=1e-3)
            assert output.error.max_error == pytest.approx(abs(actual - expected).max(), rel=1e-3)
    (last,) = (layer for layer in report.layers if layer.own.tensor == "z")
    (z,) = (output.error for output in report.outputs if output.name == "z")
    assert last.accumulated is not None
    assert z is not None
    assert last.accumulated.sqnr_db == pytest.approx(z.sqnr_db, abs=0.01)


def outputs_of(path: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options)
    names = [output.name for output in session.get_outputs()]
    runs = [session.run(names, {"x": row[np.newaxis]}) for row in rows]
    return {name: np.concatenate(each) for name, *each in zip(names, *runs, strict=True)}


def test_models_in_memory(report: ErrorReport, files: tuple[Path, Path], rows: np.ndarray) -> None:
    original, quantized = onnx.load(files[0]), ir.load(files[1])
    before = ir.to_proto(quantized)
    found = qdqtune.compare(original, quantized, data=rows)
    assert found.outputs == report.outputs
    assert found.layers == report.layers
    assert original == onnx.load(files[0])
    assert ir.to_proto(quantized) == before


def test_an_engines_own_kernels(files: tuple[Path, Path], rows: np.ndarray) -> None:
    report = qdqtune.compare(*files, data=rows, engine="openvino", threads=1, samples=2)
    assert not report.as_written
    assert report.engine.name == "openvino"
    assert all(output.error is None or output.error.sqnr_db > 20 for output in report.outputs)
    assert len(report.layers) == 3


def test_random_inputs_are_said_to_be_random(files: tuple[Path, Path]) -> None:
    report = qdqtune.compare(*files, samples=1, inputs=InputRequest(dims={"N": 3}, seed=4))
    assert report.warning.startswith("Run on random inputs")
    assert report.samples == "1 random sample, seed 4"
    text = error_text(report, top=1)
    assert text.splitlines()[-1].startswith("Run on random inputs")
    assert "and 2 more layers" in text


def test_the_record_is_json(report: ErrorReport) -> None:
    record = report.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert set(record["outputs"]["z"]) == {"sqnr_db", "cosine", "max_error", "max_value", "equal"}
    assert record["layers"][0]["inputs"] == ["uint8", "int8 per channel"]


def test_only_integers_come_out(files: tuple[Path, Path], rows: np.ndarray) -> None:
    models = [onnx.load(path) for path in files]
    for model in models:
        del model.graph.output[2], model.graph.output[0]
    report = qdqtune.compare(*models, data=rows)
    (output,) = report.outputs
    assert output.error is None
    assert output.equal > 0.8
    assert "%" in error_text(report, top=0)
    assert report.layers


class _Rows(CalibrationDataReader):
    def __init__(self, rows: np.ndarray) -> None:
        self._rows = iter(rows)

    def get_next(self) -> dict[str, np.ndarray] | None:
        row = next(self._rows, None)
        return None if row is None else {"x": row[np.newaxis]}


def test_what_another_tool_made(tmp_path: Path, rows: np.ndarray) -> None:
    original, quantized = tmp_path / "float.onnx", tmp_path / "foreign.onnx"
    onnx.save(many(), original)
    quantize_static(original, quantized, _Rows(rows), quant_format=QuantFormat.QDQ)
    report = qdqtune.compare(original, quantized, data=rows)
    assert not report.unpaired
    assert {layer.own.tensor for layer in report.layers} >= {"r", "y_QuantizeLinear_Input"}
    assert all(layer.own.sqnr_db > 20 for layer in report.layers)


def test_what_does_not_go_together(files: tuple[Path, Path], tmp_path: Path) -> None:
    original, quantized = files
    with pytest.raises(UsageError, match="no DequantizeLinear") as caught:
        qdqtune.compare(quantized, original)
    assert caught.value.hint == "Name the float model first."
    wider = many()
    wider.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 9
    with pytest.raises(UsageError, match="takes other inputs"):
        qdqtune.compare(wider, quantized)
    other = model_from_text("g (float[N,8] x) => (float[N,8] o) { o = Neg(x) }")
    with pytest.raises(UsageError, match="in common"):
        qdqtune.compare(other, quantized)
    with pytest.raises(EngineError, match="no kernels"):
        qdqtune.compare(original, quantized, engine="simulated")


def test_of_two_float_models_outputs_are_compared(
    tmp_path: Path, rows: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    original, half = tmp_path / "float.onnx", tmp_path / "half.onnx"
    onnx.save(many(), original)
    convert_model(original, half, ConvertConfig(to="fp16"))
    report = qdqtune.compare(original, half, data=rows)
    error = report.outputs[0].error
    assert error is not None
    assert 30 < error.sqnr_db < 90
    assert report.layers == ()
    assert "only outputs are compared" in caplog.text


def test_a_model_that_does_not_run_is_named() -> None:
    constants = {"s": np.float32(1), "z": np.int8(0), "shape": np.array([3], np.int64)}
    pair = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
    broken = model_from_text(
        f"g (float[N] x) => (float[3] y) {{ {pair} y = Reshape(d, shape) }}",
        **{name: np.array(value) for name, value in constants.items()},
    )
    fine = model_from_text("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    with pytest.raises(EngineError, match="does not run quantized_model"):
        qdqtune.compare(fine, broken, samples=1)


@pytest.mark.parametrize("is_given", [False, True])
def test_outputs_of_other_shapes_are_lost(is_given: bool) -> None:
    ratio = SignalToNoise()
    if is_given:
        ratio.add({"y": np.ones(3)}, {"y": np.ones(3)})
    ratio.add({"y": np.ones(3)}, {"y": np.ones(2)})
    (output,) = ratio.errors()
    assert output.error is not None
    assert output.error.sqnr_db == -np.inf
    assert output.equal == (0.5 if is_given else 0.0)


def test_a_fixed_batch_beside_an_open_one(files: tuple[Path, Path], rows: np.ndarray) -> None:
    original, quantized = files
    fixed = load_model(quantized)
    fixed.graph.inputs[0].shape = ir.Shape([2, 8])
    report = qdqtune.compare(original, fixed, data=rows)
    assert report.samples == "3 samples from arrays"
