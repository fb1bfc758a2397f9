"""Engines that take types as they are written get the model in half precision."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._options import float_type_in_effect, preferred_float_type
from qdqtune.engines._worker import Worker
from qdqtune.graph._precision import convert_precision
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._precision import Precision
from qdqtune.records._tuning import TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows import _convert as float_type
from qdqtune.workflows._convert import FloatForm, convert_to, told_options, wanted_type
from qdqtune.workflows._insert import insert
from qdqtune.workflows._quantize import quantize
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._time_budget import PRESETS
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

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
        ("float16", "", Precision.FP16),
        ("bfloat16", "strong", Precision.BF16),
        ("bfloat16", "weak", None),
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
    insert(model, quantized, ops=("Conv",), dialect="onnxruntime")
    onnx.save(model_from_text("g (float16[4] x) => (float16[4] y) { y = Relu(x) }"), half)
    for file in (quantized, half):
        assert wanted_type("auto", info(typing="strong"), open_source(file)) is None
        assert not caplog.records
        assert wanted_type("float16", info(), open_source(file)) is None
        assert "already: it is not converted to float16" in caplog.text
        caplog.clear()


@pytest.fixture(scope="module")
def run_in_half(tmp_path_factory: pytest.TempPathFactory) -> tuple[TuneResult, dict[str, Any]]:
    """A run, and what it takes to resume it."""
    folder = tmp_path_factory.mktemp("half")
    onnx.save(conv_net(), folder / "model.onnx")
    call = {
        "model": folder / "model.onnx",
        "folder": folder / "run",
        "max_benchmarks": 2,
        "state_file": folder / "state.yaml",
    }
    return tuned(**call, precision="float16"), call


def test_a_model_is_tuned_in_half_precision(
    run_in_half: tuple[TuneResult, dict[str, Any]],
) -> None:
    result, call = run_in_half
    baseline = onnx.load(call["folder"] / "baseline.onnx")
    types = {weight.data_type for weight in baseline.graph.initializer}
    assert types == {TensorProto.FLOAT16}
    for value in (*baseline.graph.input, *baseline.graph.output):
        assert value.type.tensor_type.elem_type == TensorProto.FLOAT
    summary = json.loads((call["folder"] / "summary.json").read_text())
    assert summary["precision"] == "float16"
    assert summary["precision_sqnr_db"] > 40
    assert summary["model"] == str(call["model"])
    assert "converted to float16 first" in tune_text(result)
    assert not result.summary.kept_float
    final = onnx.load(result.model)
    kinds = {weight.name: weight.data_type for weight in final.graph.initializer}
    scales = {kinds[n.input[1]] for n in final.graph.node if n.op_type == "QuantizeLinear"}
    assert scales == {TensorProto.FLOAT16}


def test_it_is_resumed_in_half_precision_only(
    run_in_half: tuple[TuneResult, dict[str, Any]], tmp_path: Path
) -> None:
    result, call = run_in_half
    before = (call["folder"] / "baseline.onnx").read_bytes()
    again = tuned(**call, precision="float16")
    assert again.summary.benchmarks == 0
    assert again.summary.memo_hits > 0
    assert again.summary.final_sha256 == result.summary.final_sha256
    for other in ({"state_file": None}, {"folder": tmp_path / "other"}):
        with pytest.raises(UsageError, match="another precision: float16, not as given"):
            tuned(**{**call, **other}, precision="float32")
    assert (call["folder"] / "baseline.onnx").read_bytes() == before


def test_what_was_measured_as_given_is_not_of_a_converted_model(tmp_path: Path) -> None:
    header = {"model": "a", "engine": {"name": "e"}}
    first = Journal(tmp_path / "j.jsonl", header)
    first.keep_shares({})
    first.close()
    with pytest.raises(UsageError, match="another precision: as given, not float16"):
        Journal(tmp_path / "j.jsonl", {"precision": "float16", **header, "model": "b"})


def test_what_overflows_is_tuned_as_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = tmp_path / "large.onnx"
    onnx.save(conv_net(scale=50.0), model)
    result = tuned(model, tmp_path / "run", precision="float16", max_benchmarks=1, min_sqnr_db=None)
    summary = result.summary
    assert summary.precision == "as given"
    assert summary.precision_sqnr_db is None
    assert summary.precision_reason.startswith("in float16 it is not accurate enough: ")
    assert "is no longer finite" in caplog.text
    assert f"tuned as given: {summary.precision_reason}." in tune_text(result)
    assert (tmp_path / "run/baseline.onnx").read_bytes() == model.read_bytes()
    written = json.loads((tmp_path / "run/summary.json").read_text())
    assert written["precision_reason"] == summary.precision_reason


def test_what_ships_is_compared_with_the_model_as_given(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversion that spoils the model counts, however near to it the quantized form is."""

    def spoil(proto: ir.Model, precision: Precision) -> object:
        for value in proto.graph.initializers.values():
            value.const_value = ir.tensor(value.const_value.numpy() * 1.5, name=value.name)
        return convert_precision(proto, precision)

    monkeypatch.setattr(float_type, "convert_precision", spoil)
    result = tuned(model, tmp_path / "run", precision="float16", max_benchmarks=2, min_sqnr_db=None)
    summary = result.summary
    assert not summary.kept_float
    assert summary.precision_sqnr_db == pytest.approx(-1.9, abs=0.1)
    assert summary.output_sqnr_db == pytest.approx(summary.precision_sqnr_db, abs=0.5)
    assert "dB against the model as given" in tune_text(result)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("", "", marks=pytest.mark.slow),
        ("build_fails@half", "in float16 the engine does not run it"),
        pytest.param("build_fails@.onnx", None, marks=pytest.mark.slow),
    ],
)
def test_what_the_engine_refuses_is_tuned_as_given_or_not_at_all(
    fault: str, reason: str | None, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On the stand-in trtexec."""
    with stand_in_worker(tmp_path, fault) as worker:
        if reason is None:
            with pytest.raises(EngineError, match=r"does not run the model as it is"):
                converted(worker, model)
            assert not caplog.records
            return
        form = converted(worker, model)
    assert form.reason.startswith(reason)
    assert (form.model is None) == bool(reason)
    assert (form.speedup is None) == bool(reason)


@pytest.mark.slow
def test_what_is_slower_is_tuned_as_given_unless_it_was_asked_for(tmp_path: Path) -> None:
    """On the stand-in trtexec, for which a Cast is a kernel that a tiny model can't pay."""
    path = tmp_path / "tiny.onnx"
    text = "g (float[1,64,16,16] x) => (float[1,4,16,16] y) { y = Conv(x, w) }"
    onnx.save(model_from_text(text, w=np.ones((4, 64, 1, 1), np.float32)), path)
    with stand_in_worker(tmp_path, "") as worker:
        form = converted(worker, path)
        assert form.model is None
        assert "in float16 it is slower" in form.reason
        asked = converted(worker, path, may_be_slower=True)
    assert asked.name == "float16"
    assert asked.speedup is not None
    assert asked.speedup < 1


def stand_in_worker(folder: Path, fault: str) -> Worker:
    program = write_stand_in_trtexec(folder / "bin")
    environment = stand_in_environment(program, "10.16.1", fault=fault)
    return Worker("trtexec", host=LocalHost(variables=environment))


def converted(worker: Worker, model: Path, **how: bool) -> FloatForm:
    x = np.random.default_rng(0).normal(size=(1, 64, 16, 16)).astype(np.float32)
    feeds = worker.store({"x": x})
    target = model.with_name("half.onnx")
    preset = PRESETS["quick"]
    return convert_to(
        Precision.FP16, open_source(model), target, lambda: [{"x": x}], worker, feeds, 10.0, preset,
        **how,
    )  # fmt: skip


def test_an_engine_that_chooses_types_is_told_which() -> None:
    weak, given = info(typing="weak"), {"level": "2"}
    assert told_options("auto", weak, given) == given
    assert told_options("bfloat16", weak, given) == {"level": "2", "precision": "bf16"}
    assert told_options("float16", info(typing="strong"), given) == given
    assert told_options("float16", weak, {"precision": "fp16"}) == {"precision": "fp16"}
    with pytest.raises(UsageError, match="option precision is fp16"):
        told_options("float32", weak, {"precision": "fp16"})


def test_there_are_no_other_types(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="precision must be one of"):
        tuned(model, tmp_path / "run", precision="half")
    assert not (tmp_path / "run").exists()


# Engines without integer kernels for half floats get the model in float32.


def half_net(dtype: Precision = Precision.FP16) -> onnx.ModelProto:
    """A model in a half float type, its inputs and outputs included."""
    model = ir.from_proto(conv_net())
    convert_precision(model, dtype, keep_io=False)
    return ir.to_proto(model)


def border(model: onnx.ModelProto) -> list[tuple[str, int]]:
    values = (*model.graph.input, *model.graph.output)
    return [(value.name, value.type.tensor_type.elem_type) for value in values]


def on_cpu(model: Path, folder: Path, **options: object) -> TuneResult:
    settings = {"engine_options": QUIET, "max_benchmarks": 3, **options}
    return tuned(model, folder, **settings)


@pytest.mark.parametrize("options", [{}, {"precision": "float32"}, {"workflow": "subgraph"}])
def test_a_float16_model_is_tuned_in_float32(tmp_path: Path, options: dict[str, object]) -> None:
    onnx.save(half_net(), tmp_path / "half.onnx")
    heard: list[str] = []
    result = on_cpu(
        tmp_path / "half.onnx", tmp_path / "run", **options,
        callbacks=[lambda event: heard.append(event.message)],
    )  # fmt: skip
    assert not result.summary.kept_float
    assert result.summary.qdq_pairs
    assert result.summary.converted_from == "float16"
    written = onnx.load(result.model)
    assert border(written) == border(half_net())
    assert {node.op_type for node in written.graph.node} >= {"Cast", "QuantizeLinear"}
    # What has to be beaten is the file as it was given.
    as_given = (tmp_path / "half.onnx").read_bytes()
    assert (tmp_path / "run" / "baseline.onnx").read_bytes() == as_given
    assert any("no integer kernels for float16" in each for each in heard)
    shown = tune_text(result)
    assert "as given (float16)" in shown
    assert "it was tuned in float32. Inputs and outputs keep their types." in shown


def test_what_is_not_faster_than_a_float16_model_is_not_handed_over(tmp_path: Path) -> None:
    onnx.save(half_net(), tmp_path / "half.onnx")
    result = on_cpu(tmp_path / "half.onnx", tmp_path / "run", performance_threshold=100.0)
    assert result.summary.kept_float
    assert result.model.read_bytes() == (tmp_path / "half.onnx").read_bytes()


def test_who_asks_for_float16_is_told_what_it_costs(tmp_path: Path) -> None:
    onnx.save(half_net(), tmp_path / "half.onnx")
    result = on_cpu(tmp_path / "half.onnx", tmp_path / "run", precision="float16")
    assert result.summary.kept_float
    assert "no integer kernel for float16 tensors" in result.summary.reason
    assert "without --precision it is tuned in float32" in result.summary.reason


def test_kernels_for_half_floats_need_no_conversion(tmp_path: Path) -> None:
    onnx.save(half_net(), tmp_path / "half.onnx")
    has_kernels = open_source(tmp_path / "half.onnx", float_types={ir.DataType.FLOAT16})
    assert not has_kernels.converted_from
    has_none = open_source(tmp_path / "half.onnx", float_types={ir.DataType.FLOAT})
    assert has_none.converted_from == "float16"
    asked = open_source(
        tmp_path / "half.onnx", precision=Precision.FP16, float_types={ir.DataType.FLOAT}
    )
    assert not asked.converted_from


@pytest.mark.parametrize("autotune", [None, "quick"])
def test_a_float16_model_is_quantized_in_float32(tmp_path: Path, autotune: str | None) -> None:
    model = half_net()
    result = quantize(
        model, engine="simulated", engine_options=QUIET, autotune=autotune,
        autotune_output_dir=tmp_path / "run" if autotune else None,
    )  # fmt: skip
    assert not result.kept_float
    assert border(result.model) == border(model)
    assert result.report.to_dict()["converted_from"] == "float16"
    assert "Inputs and outputs keep their types." in result.table


def test_onnx_runtime_runs_what_was_float16(tmp_path: Path) -> None:
    """The whole way on a real engine: whatever is faster here, nothing else comes back."""
    onnx.save(half_net(), tmp_path / "half.onnx")
    result = tune(
        tmp_path / "half.onnx", engine="onnxruntime", threads=1, preset="quick", max_benchmarks=1,
        output_dir=tmp_path / "run",
    )  # fmt: skip
    assert border(onnx.load(result.model)) == border(half_net())
    assert result.summary.converted_from == "float16"
    if result.summary.kept_float:
        assert result.model.read_bytes() == (tmp_path / "half.onnx").read_bytes()
