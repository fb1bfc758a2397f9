"""Tuning with dynamic ops: what is chosen, counted, and said of calibration."""

from __future__ import annotations

import json
import math
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune.engines._registry import available
from qdqtune.graph._files import load_model
from qdqtune.qdq import dialect_named
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod
from qdqtune.workflows.tuning._final_round import Finalist, FinalRound, Objective, Role
from qdqtune.workflows.tuning._finalize import _dynamic_contends
from qdqtune.workflows.tuning._tune import tune
from tests.workflows.test_final_round import BLANKET, RESULT, THRESHOLD, timed

UNCALIBRATED = Finalist(
    "uncalibrated", frozenset({2}), Placement.of(dynamic=["op"]), Path("free"), RangeMethod.MAX,
    role=Role.UNCALIBRATED,
)  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of one layer."""
    path = tmp_path_factory.mktemp("encoder") / "bert.onnx"
    model = zoo.build("bert", layers=1, width=64, head_width=32, sequence=16, vocabulary=100)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("result", "uncalibrated", "chosen"),
    [
        (1.50, 1.49, UNCALIBRATED),  # within 2 %
        (1.50, 1.60, UNCALIBRATED),
        (1.50, 1.45, RESULT),
        (1.50, "it crashed", RESULT),
        (1.03, 1.015, RESULT),  # below the threshold
    ],
)
def test_what_needs_no_calibration_is_preferred_if_nearly_as_fast(
    result: float, uncalibrated: float | str, chosen: Finalist
) -> None:
    speeds = {RESULT.file: timed(result), BLANKET.file: timed(1.0)}
    free = uncalibrated if isinstance(uncalibrated, str) else timed(uncalibrated)
    entries = (RESULT, BLANKET, UNCALIBRATED)
    final = FinalRound(entries, {**speeds, UNCALIBRATED.file: free})
    assert final.choose(Objective(THRESHOLD), lambda _: "") == (chosen, "")


def test_dynamic_quantization_sets_the_accuracy_only_where_it_is_about_as_fast() -> None:
    static = {"everything": 2.0, "weighted ops": 1.8}
    assert _dynamic_contends({**static, "dynamic products": 2.1})
    assert _dynamic_contends({**static, "dynamic products": 1.95})
    assert not _dynamic_contends({**static, "dynamic products": 1.5})
    assert not _dynamic_contends(static)
    assert not _dynamic_contends({"dynamic products": 2.0})  # nothing else was timed


def test_without_calibration_only_dynamic_ops_are_tried(encoder: Path, tmp_path: Path) -> None:
    result = tune(
        encoder, output_dir=tmp_path, engine="onnxruntime", threads=1, preset="quick",
        max_benchmarks=3, dynamic_only=True, performance_threshold=1.0, seed=1,
    )  # fmt: skip
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary["seeds"]) <= {
        "dynamic products", "dynamic products, sums unfused", "dynamic products and rules",
    }  # fmt: skip
    assert summary["calibration_samples"] == 0
    if summary["kept_float"]:  # it is small: whether it gains is up to the CPU
        return
    assert summary["calibration"] == "none"
    assert summary["qdq_pairs"] == 0
    found = read(load_model(result.model)).placement
    assert found == result.placement
    assert len(found.dynamic) == summary["dynamic_ops"] > 0
    assert len(found.unfused) == summary["unfused_ops"]
    assert "random" not in result.warning


def test_without_calibration_requires_region_mode(encoder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="requires --workflow region"):
        tune(encoder, output_dir=tmp_path, dynamic_only=True, workflow="subgraph")


def test_a_dialect_without_dynamic_ops_says_so(encoder: Path, tmp_path: Path) -> None:
    result = tune(
        encoder, output_dir=tmp_path, engine="simulated", engine_options={"profile": "gpu"},
        preset="quick", max_benchmarks=1, dynamic_only=True,
    )  # fmt: skip
    assert result.summary.kept_float
    assert "can quantize nothing of it at run time" in result.summary.reason


@pytest.mark.skipif(not available("openvino").usable, reason="OpenVINO is not installed")
def test_openvino_quantizes_at_run_time_by_itself_where_the_cpu_has_vnni(
    encoder: Path, tmp_path: Path
) -> None:
    result = tune(
        encoder, output_dir=tmp_path, engine="openvino", threads=1, preset="quick",
        max_benchmarks=1, dynamic_only=True, performance_threshold=1.0,
    )  # fmt: skip
    summary = result.summary
    if not dialect_named(summary.dialect).dynamic_by_engine:
        assert "can quantize nothing of it at run time" in summary.reason
        return
    assert set(summary.seeds) <= {"dynamic products", "dynamic products and rules"}
    if not summary.kept_float:  # it is small: whether it gains is up to the CPU
        assert (summary.calibration, summary.qdq_pairs) == ("none", summary.dynamic_ops)
        assert not result.placement.dynamic  # nothing is written but quantized weights


def test_the_seeds_and_the_choices_have_dynamic_products(encoder: Path, tmp_path: Path) -> None:
    result = tune(
        encoder, output_dir=tmp_path, engine="onnxruntime", threads=1, preset="quick",
        max_benchmarks=8,
    )  # fmt: skip
    seeds = result.summary.seeds
    assert {"dynamic products", "dynamic products and rules"} <= set(seeds)
    assert all(math.isfinite(speedup) for speedup in seeds.values())
