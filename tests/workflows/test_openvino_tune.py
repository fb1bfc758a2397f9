"""Tuning for another engine than the one that calibrates: its kernels measure the error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune._command_configs import ConvertConfig
from qdqtune.calibration._output_error import Reference
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import exact_options
from qdqtune.engines._reference_engine import AS_WRITTEN, reference_worker
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.records._errors import EngineError, QdqtuneError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._tuning import TuneResult
from qdqtune.report._bench import engine_line
from qdqtune.report._tuning import tune_text
from qdqtune.workflows import _accuracy_evaluator as accuracy_evaluator
from qdqtune.workflows._accuracy_evaluator import AccuracyEvaluator, Kernels
from qdqtune.workflows._convert import convert_model
from qdqtune.workflows._insert import insert
from qdqtune.workflows._quantize import quantize
from qdqtune.workflows._sample_provider import sample_provider
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows._verify import verify
from qdqtune.workflows.tuning._time_budget import PRESETS
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

pytestmark = pytest.mark.skipif(
    not registry.available("openvino").usable, reason="OpenVINO is not installed"
)

# Convs of this size gain on every CPU; products don't without VNNI.
TEXT = """g (float[1,64,28,28] x) => (float[1,64,26,28] y)
<int64[1] low = {0}, int64[1] high = {26}, int64[1] rows = {2}> {
    h = Conv<pads=[1,1,1,1]>(x, v)
    r = Relu(h)
    s = Slice(r, low, high, rows)
    y = Conv<pads=[1,1,1,1]>(s, w)
}"""
OPTIONS = {"execution_mode": "PERFORMANCE"}

Evaluations = list[tuple[str, SessionOptions | None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(64, 64, 3, 3)).astype(np.float32) / 20 for name in "vw"}
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(model_from_text(TEXT, **weights), path)
    return path


@pytest.fixture(scope="module")
def evaluations() -> Iterator[Evaluations]:
    """Filled with whose worker runs what candidates are compared with, and how it opens it."""
    seen: Evaluations = []

    class Watched(Reference):
        def __init__(self, worker: Worker, *rest: Any, options: SessionOptions | None) -> None:
            seen.append((worker.info().name, options))
            super().__init__(worker, *rest, options=options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accuracy_evaluator, "Reference", Watched)
        yield seen


def in_float32(options: SessionOptions) -> SessionOptions:
    """How the float model is opened that outputs are compared with; the CPU decides that."""
    with Worker("openvino", options) as worker:
        return exact_options(worker.info(), options) or options


@pytest.fixture(scope="module")
def brief() -> Iterator[str]:
    """A preset whose last comparison is over soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", replace(PRESETS["quick"], final_s=0.3))
        yield "quick"


@pytest.fixture(scope="module")
def tuned(model: Path, brief: str, evaluations: Evaluations) -> tuple[TuneResult, Evaluations]:
    result = tune(
        model,
        engine="openvino",
        engine_options=OPTIONS,
        threads=1,
        preset=brief,
        max_benchmarks=1,
        timing_runs=16,
        output_dir=model.parent / "run",
    )
    return result, list(evaluations)


def test_what_ships_is_evaluated_with_its_own_kernels(
    tuned: tuple[TuneResult, Evaluations],
) -> None:
    result, evaluations = tuned
    assert not result.summary.kept_float
    assert result.placement.tensors == {"v", "x", "r", "w"}
    assert evaluations == [("openvino", in_float32(SessionOptions(1, OPTIONS)))]
    assert result.summary.output_sqnr_db is not None
    assert 20 < result.summary.output_sqnr_db < 60


def test_the_summary_says_what_was_in_effect_and_it_is_verified_so(
    tuned: tuple[TuneResult, Evaluations],
) -> None:
    result, _ = tuned
    engine = json.loads((result.output_dir / "summary.json").read_text())["engine"]
    assert (engine["name"], engine["threads"]) == ("openvino", 1)
    assert engine["isa"]
    assert engine["options"].items() >= OPTIONS.items()
    report = verify(result.model, threads=1, runs=20)
    assert report.bench is not None
    assert report.bench.engine.to_dict() == engine
    assert {check.name: check.outcome.value for check in report.checks} == dict.fromkeys(
        ["file", "baseline", "placement", "error"], "confirmed"
    )
    assert report.edges is not None
    assert not report.edges.missing


def test_the_run_of_one_engine_is_not_resumed_by_another(
    model: Path, tuned: tuple[TuneResult, Evaluations]
) -> None:
    result, _ = tuned
    with pytest.raises(QdqtuneError, match="another engine: openvino, not onnxruntime"):
        tune(model, engine="onnxruntime", threads=1, output_dir=result.output_dir)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"engine": "openvino"}, None),
        ({"engine": "onnxruntime"}, ("onnxruntime", SessionOptions())),
        ({"dialect": "tensorrt"}, ("onnxruntime", AS_WRITTEN)),
        ({"engine": "tensorrt"}, ("onnxruntime", AS_WRITTEN)),
    ],
)
def test_inserted_by_hand_it_is_evaluated_so_as_well(
    model: Path, tmp_path: Path, evaluations: Evaluations, asked: dict[str, str], expected: object
) -> None:
    evaluations.clear()
    if asked == {"engine": "openvino"}:
        expected = ("openvino", in_float32(SessionOptions()))
    report = insert(model, tmp_path / "q.onnx", ops=("Conv",), **asked)  # type: ignore[arg-type]
    assert evaluations == [expected]
    assert report.sqnr_db["y"] > 20


def test_ranking_is_left_to_the_engine_that_calibrates(
    model: Path, tuned: tuple[TuneResult, Evaluations], tmp_path: Path, evaluations: Evaluations
) -> None:
    evaluations.clear()
    source = open_source(model)
    provider = sample_provider(source, InputRequest(), None, None)
    base = PreparedModel(source.model, tmp_path)
    candidate = tuned[0].output_dir / "optimized_final.onnx"
    own = SessionOptions(1, {"max_cpu_isa": "AVX2", "inference_precision": "f32"})
    with reference_worker() as runner, Worker("openvino", own) as worker:
        kernels = Kernels("openvino", worker, own)
        accuracy = AccuracyEvaluator(
            source, base, runner, provider.evaluation_samples, kernels=kernels
        )
        assert accuracy.approximate_sqnr_db(candidate) > 20
        assert evaluations == [("onnxruntime", AS_WRITTEN)]
        assert accuracy.quality(candidate).against_float["y"] > 20
        assert evaluations[1:] == [("openvino", own)]
        (tmp_path / "junk.onnx").write_bytes(b"junk")
        with pytest.raises(EngineError, match="OpenVINO does not run the quantized model"):
            accuracy.quality(tmp_path / "junk.onnx")
        accuracy.close()


def test_half_floats_are_quantized_where_the_engine_has_kernels(
    model: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half.onnx"
    convert_model(model, half, ConvertConfig(to="fp16"))
    report = insert(half, tmp_path / "int8.onnx", ops=["Conv"], engine="openvino")
    assert len(report.quantized) == 2
    assert min(report.sqnr_db.values()) > 25.0


def test_what_the_engine_dies_of_is_not_shipped(
    model: Path, brief: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> dict[str, float]:
        raise WorkerFailure("the engine's process was ended by SIGFPE", FailureKind.CRASH)

    monkeypatch.setattr(Reference, "compare", die)
    result = tune(
        model, engine="openvino", threads=1, preset=brief, max_benchmarks=1, output_dir=tmp_path
    )
    assert result.summary.kept_float
    assert result.model.read_bytes() == model.read_bytes()


BFLOAT16, FLOAT32 = {"inference_precision": "bf16"}, {"inference_precision": "f32"}


@pytest.fixture(scope="module")
def low_floats() -> EngineInfo:
    """OpenVINO in bfloat16, by the CPU or emulated."""
    with Worker("openvino", SessionOptions(1, BFLOAT16)) as worker:
        info = worker.info()
    if info.float_type != "bfloat16":
        pytest.skip(f"OpenVINO computes bfloat16 in {info.float_type} here")
    return info


def noise_db(true: np.ndarray, found: np.ndarray) -> float:
    return 10 * math.log10(np.square(true).sum() / np.square(found - true).sum())


def test_outputs_are_compared_with_float32_whatever_the_engine_computes_in(
    model: Path, tmp_path: Path, low_floats: EngineInfo
) -> None:
    """The number that is told is what anybody finds who runs both files."""
    x = np.random.default_rng(3).normal(size=(4, 1, 64, 28, 28)).astype(np.float32)
    target = tmp_path / "q.onnx"
    report = quantize(
        model, target, engine="openvino", engine_options=BFLOAT16, threads=1,
        calibration_data=[{"x": each} for each in x], performance_threshold=None,
    ).report  # fmt: skip
    outputs = {}
    for name, path, options in (
        ("true", model, FLOAT32), ("float", model, BFLOAT16), ("quantized", target, BFLOAT16)
    ):  # fmt: skip
        with Worker("openvino", SessionOptions(1, options)) as worker:
            opened = worker.open(path)
            outputs[name] = np.stack([worker.run(opened, {"x": each})["y"] for each in x])
    assert report.float_type == "bfloat16"
    assert report.float_sqnr_db == pytest.approx(noise_db(outputs["true"], outputs["float"]))
    assert report.sqnr_db["y"] == pytest.approx(noise_db(outputs["true"], outputs["quantized"]))
    assert "is computed in bfloat16" in engine_line(low_floats)


def test_in_float32_nothing_is_said_of_the_float_model(
    tuned: tuple[TuneResult, Evaluations],
) -> None:
    summary = tuned[0].summary
    assert (summary.float_sqnr_db is None) == (summary.engine.float_type == "float32")
    said = tune_text(tuned[0])
    assert ("The float model itself is" in said) == (summary.float_sqnr_db is not None)
    assert ("float (bfloat16) " in said) == (summary.engine.float_type == "bfloat16")
