"""Engines that take types as they are written get the model in half precision."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtune.engines.float_types import float_type_in_effect, preferred_float_type
from qdqtune.engines.simulated import QUIET
from qdqtune.records.errors import UsageError
from qdqtune.records.measurement import EngineInfo
from qdqtune.records.precision import Precision
from qdqtune.records.tuning import TuneResult
from qdqtune.report.tuning import tune_text
from qdqtune.workflows.insertion import Choice, insert_qdq
from qdqtune.workflows.source import open_source
from qdqtune.workflows.tune import tune
from qdqtune.workflows.tuning.float_type import wanted_type
from tests.conftest import model_from_text

TEXT = """g (float[1,64,16,16] x) => (float[1,64,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Relu(a)
    y = Conv<pads=[1,1,1,1]>(b, w2)
}"""


def conv_net(scale: float = 0.04) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(64, 64, 3, 3)) * scale for n in (1, 2)}
    return model_from_text(TEXT, **{name: w.astype(np.float32) for name, w in weights.items()})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(conv_net(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def tuned(model: Path, folder: Path, **options: object) -> TuneResult:
    gpu = {**QUIET, "profile": "gpu"}
    settings = {"engine": "simulated", "engine_options": gpu, "preset": "quick"}
    return tune(model, output_dir=folder, **{**settings, **options})  # type: ignore[arg-type]


def info(**options: str) -> EngineInfo:
    return EngineInfo("an engine", "1", "a GPU", "sm90", options=options)


def test_only_types_as_written_ask_for_half_precision() -> None:
    assert preferred_float_type(info()) is Precision.FP32
    assert preferred_float_type(info(typing="weak")) is Precision.FP32
    assert preferred_float_type(info(typing="strong")) is Precision.FP16


@pytest.mark.parametrize(
    ("options", "written", "effective"),
    [
        ({}, Precision.FP32, Precision.FP32),
        ({"typing": "strong"}, Precision.FP16, Precision.FP16),
        ({"typing": "weak"}, Precision.FP32, Precision.FP16),
        ({"typing": "weak", "precision": "bf16"}, Precision.FP32, Precision.BF16),
    ],
)
def test_the_type_in_effect(
    options: dict[str, str], written: Precision, effective: Precision
) -> None:
    assert float_type_in_effect(info(**options), written) is effective


@pytest.mark.parametrize(
    ("asked", "typing", "wanted"),
    [
        ("auto", "strong", Precision.FP16),
        ("auto", "weak", None),
        ("float32", "strong", None),
        ("bfloat16", "weak", Precision.BF16),
    ],
)
def test_what_a_float_model_is_converted_to(
    asked: str, typing: str, wanted: Precision | None, model: Path
) -> None:
    assert wanted_type(asked, info(typing=typing), open_source(model)) is wanted


def test_what_is_half_or_quantized_stays_as_it_is(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantized, half = tmp_path / "quantized.onnx", tmp_path / "half.onnx"
    insert_qdq(model, Choice(ops=("Conv",)), quantized, dialect="onnxruntime")
    onnx.save(model_from_text("g (float16[4] x) => (float16[4] y) { y = Relu(x) }"), half)
    for file in (quantized, half):
        assert wanted_type("auto", info(typing="strong"), open_source(file)) is None
        assert not caplog.records
        assert wanted_type("float16", info(), open_source(file)) is None
        assert "already: it is not converted to float16" in caplog.text
        caplog.clear()


def test_a_model_is_tuned_in_half_precision_and_gone_on_with(model: Path, tmp_path: Path) -> None:
    first = tuned(model, tmp_path / "run", precision="float16", max_benchmarks=2)
    baseline = onnx.load(tmp_path / "run/baseline.onnx")
    types = {weight.data_type for weight in baseline.graph.initializer}
    assert types == {TensorProto.FLOAT16}
    for value in (*baseline.graph.input, *baseline.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["precision"] == "float16"
    assert summary["precision_sqnr_db"] > 40
    assert summary["model"] == str(model)
    assert "converted to float16 first" in tune_text(first)
    if first.summary.kept_float:
        assert first.model.read_bytes() == (tmp_path / "run/baseline.onnx").read_bytes()
    else:
        final = onnx.load(first.model)
        kinds = {weight.name: weight.data_type for weight in final.graph.initializer}
        scales = {kinds[n.input[1]] for n in final.graph.node if n.op_type == "QuantizeLinear"}
        assert scales == {TensorProto.FLOAT16}
    again = tuned(model, tmp_path / "run", precision="float16", max_benchmarks=2)
    assert again.summary.benchmarks == 0
    assert again.summary.memo_hits > 0
    assert again.summary.final_sha256 == first.summary.final_sha256


def test_what_overflows_is_tuned_as_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "large.onnx"
    onnx.save(conv_net(scale=50.0), model)
    result = tuned(model, tmp_path / "run", precision="float16", max_benchmarks=1)
    assert result.summary.precision == "as given"
    assert result.summary.precision_sqnr_db is None
    assert "not accurate enough, it is tuned as given" in caplog.text
    assert (tmp_path / "run/baseline.onnx").read_bytes() == model.read_bytes()


def test_there_are_no_other_types(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no precision 'half'"):
        tuned(model, tmp_path / "run", precision="half")
    assert not (tmp_path / "run").exists()
