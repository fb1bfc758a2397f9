"""`region_pattern_autotuning_workflow`: a run that ends in an autotuner."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.autotune import QDQAutotuner
from qdqtune.autotune import workflows as region_patterns
from qdqtune.autotune.workflows import (
    benchmark_onnx_model,
    init_benchmark_instance,
    region_pattern_autotuning_workflow,
)
from qdqtune.graph._precision import convert_precision
from qdqtune.qdq_utils import get_quantized_tensors
from qdqtune.records._errors import EngineError, ModelError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._precision import Precision
from tests.conftest import model_from_text


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1))


@pytest.fixture(autouse=True)
def a_benchmark_that_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    init_benchmark_instance(engine="simulated")
    yield
    init_benchmark_instance(engine="simulated")


def test_it_ends_in_an_autotuner_that_exports_what_was_found(
    model: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(model, "m.onnx")
    autotuner = region_pattern_autotuning_workflow("m.onnx", tmp_path / "run", 4)
    assert isinstance(autotuner, QDQAutotuner)
    assert autotuner.baseline_latency_ms is not None
    assert math.isfinite(autotuner.baseline_latency_ms)
    assert autotuner.profiled_patterns
    assert autotuner.pattern_cache.num_patterns > 0
    data = autotuner.export_onnx("mine.onnx")
    assert get_quantized_tensors(onnx.load_from_string(data)) == get_quantized_tensors("mine.onnx")
    final = get_quantized_tensors(tmp_path / "run" / "optimized_final.onnx")
    assert final
    assert get_quantized_tensors("mine.onnx") == final
    latency = benchmark_onnx_model(data)
    assert latency == pytest.approx(benchmark_onnx_model("run/optimized_final.onnx"), rel=0.05)
    assert (tmp_path / "run" / "autotuner_state.yaml").is_file()


def test_a_model_in_memory_and_no_folder(model: onnx.ModelProto, tmp_path: Path) -> None:
    before = model.SerializeToString()
    autotuner = region_pattern_autotuning_workflow(model, num_schemes_per_region=1)
    assert autotuner.profiled_patterns
    assert list(tmp_path.iterdir()) == []
    assert model.SerializeToString() == before


def test_a_model_without_anything_to_quantize() -> None:
    nothing = model_from_text("g (float[8,8] x) => (float[8,8] y) { y = Erf(x) }")
    autotuner = region_pattern_autotuning_workflow(nothing)
    assert autotuner.baseline_latency_ms is not None
    assert autotuner.profiled_patterns == []
    assert get_quantized_tensors(onnx.load_from_string(autotuner.export_onnx())) == set()


def test_a_float16_model() -> None:
    half = ir.from_proto(zoo.build("resnet18", width=64, image=32, blocks=(1, 1, 1, 1)))
    convert_precision(half, Precision.FP16, keep_io=False)
    autotuner = region_pattern_autotuning_workflow(
        ir.to_proto(half), "run", num_schemes_per_region=1
    )
    exported = onnx.load_from_string(autotuner.export_onnx())
    assert exported.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16
    quantized = get_quantized_tensors(exported)
    assert quantized
    assert quantized == get_quantized_tensors(onnx.load("run/optimized_final.onnx"))


def test_open_dims(tmp_path: Path) -> None:
    settings = {"width": 8, "image": 32, "blocks": (1, 1, 1, 1)}
    open_model = zoo.build("resnet18", **settings, dynamic=True)
    autotuner = region_pattern_autotuning_workflow(model_path=open_model, num_schemes_per_region=1)
    assert autotuner.profiled_patterns
    open_model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "H"
    with pytest.raises(UsageError, match="'image' is"):
        region_pattern_autotuning_workflow(model_path=open_model, num_schemes_per_region=1)
    init_benchmark_instance(engine="simulated", inputs=InputRequest(dims={"H": 32}))
    autotuner = region_pattern_autotuning_workflow(model_path=open_model, num_schemes_per_region=1)
    assert autotuner.profiled_patterns


def test_a_state_file_elsewhere(tmp_path: Path, model: onnx.ModelProto) -> None:
    state = tmp_path / "state" / "mine.yaml"
    state.parent.mkdir()
    autotuner = region_pattern_autotuning_workflow(model, "run", 1, state_file=state)
    assert state.is_file()
    assert (state.parent / "mine_pattern_cache.yaml").is_file()
    assert autotuner.profiled_patterns


def test_a_node_filter(model: onnx.ModelProto) -> None:
    autotuner = region_pattern_autotuning_workflow(
        model, num_schemes_per_region=2, node_filter_list=["fc"]
    )
    quantized = get_quantized_tensors(onnx.load_from_string(autotuner.export_onnx()))
    assert not any(name.startswith("layer1") for name in quantized)
    assert len(autotuner.profiled_patterns) == 1


def asked(monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    def ask(_model: object, **request: Any) -> None:
        seen.update(request)
        raise QdqtuneError("enough", "is known")

    monkeypatch.setattr(region_patterns, "tune", ask)
    with pytest.raises(QdqtuneError, match="enough"):
        region_pattern_autotuning_workflow("m.onnx", "run", **arguments)
    return seen


@pytest.mark.parametrize(("schemes", "preset"), [(5, "quick"), (30, "quick"), (50, "default"),
                                                  (200, "extensive")])  # fmt: skip
def test_how_thorough(schemes: int, preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = asked(monkeypatch, num_schemes_per_region=schemes)
    assert (request["preset"], request["schemes_per_region"]) == (preset, schemes)


def test_the_benchmark_says_where_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch)["timing_runs"] is None
    init_benchmark_instance(engine="onnxruntime", threads=1, timing_runs=44)
    request = asked(monkeypatch)
    assert (request["engine"], request["threads"]) == ("onnxruntime", 1)
    assert request["timing_runs"] == 44


@pytest.mark.parametrize("given", [["fc", "conv*"], "filter.txt", Path("filter.txt")])
def test_node_filters(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("filter.txt").write_text("fc\n# not this\nconv*\n")
    assert asked(monkeypatch, node_filter_list=given)["region_filter"] == ["fc", "conv*"]


def test_a_missing_cache_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "qdqtune")
    assert asked(monkeypatch, pattern_cache_file="missing.yaml")["pattern_cache"] is None
    assert "there is no pattern cache missing.yaml" in caplog.text


def test_mistakes(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="no model"):
        region_pattern_autotuning_workflow()
    with pytest.raises(UsageError, match="Two models"):
        region_pattern_autotuning_workflow(model, model_path=model)
    with pytest.raises(ModelError, match=r"missing\.onnx does not exist"):
        region_pattern_autotuning_workflow("missing.onnx", "run")
    with pytest.raises(ModelError, match="baseline missing"):
        region_pattern_autotuning_workflow(model, qdq_baseline_model="missing.onnx")
    with pytest.raises(QdqtuneError, match="default_dq_dtype"):
        region_pattern_autotuning_workflow(model, default_dq_dtype="float8")
    with pytest.raises(UsageError, match="num_schemes_per_region is 0"):
        region_pattern_autotuning_workflow(model, num_schemes_per_region=0)
    init_benchmark_instance(use_trtexec=True)
    with pytest.raises(EngineError, match="nothing to measure with"):
        region_pattern_autotuning_workflow(model)


def test_what_is_quantized_by_its_original_names() -> None:
    """Not by the names of what Q gives, which no float model has."""
    given = model_from_text(
        """
        g (float[4] x) => (float[4] y) {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            y = Relu(d)
        }""",
        s=np.float32(0.1).reshape(()),
        z=np.int8(0).reshape(()),
    )
    assert get_quantized_tensors(given) == {"x"}
