"""`quantize --dynamic`: products are quantized at run time, and everything knows of it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import UsageError
from qdqtune.workflows._quantize import quantize

PRODUCTS = 6  # all but two of attention and a small Gemm


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "float.onnx"
    onnx.save(zoo.build("bert", layers=1, width=64, vocabulary=99), path)
    return path


def test_nothing_is_calibrated(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "dynamic.onnx"
    line = ["quantize", str(bert), "-o", str(target), "--dialect", "onnxruntime", "--dynamic"]
    assert main([*line, "--performance_threshold", "none"]) == 0
    out = capsys.readouterr().out
    assert f"The inputs of {PRODUCTS} ops are quantized at run time." in out
    assert "3 sums are written so that they are not fused." in out
    assert "Calibrated" not in out
    metadata = {each.key: each.value for each in onnx.load(target).metadata_props}
    assert metadata["qdqtune.calibration"] == "none"
    placement = read(load_model(target)).placement
    assert (len(placement.dynamic), len(placement.unfused)) == (PRODUCTS, 3)


def test_the_report_counts_each_form(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["quantize", str(bert), "-o", str(tmp_path / "q.onnx"), "--dialect", "onnxruntime"]
    line += ["--performance_threshold", "none", "--format", "json"]
    assert main([*line, "--dynamic"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dynamic_ops"], found["unfused_ops"], found["calibration"]) == (
        PRODUCTS,
        3,
        "none",
    )
    assert sum(each["dynamic"] for each in found["nodes"]) == PRODUCTS
    assert main([*line, "--force"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dynamic_ops"], found["unfused_ops"], found["calibration"]) == (0, 0, "random")


def test_ops_that_cost_too_much_become_float(bert: Path, tmp_path: Path) -> None:
    asked = {"dynamic": True, "dialect": "onnxruntime", "performance_threshold": None}
    whole = quantize(bert, tmp_path / "whole.onnx", **asked).report
    assert whole.worst_db is not None
    least = whole.worst_db + 2.0
    report = quantize(bert, tmp_path / "less.onnx", min_sqnr_db=least, **asked).report
    assert report.worst_db is not None
    assert report.worst_db >= least
    assert 0 < report.dynamic_ops < PRODUCTS
    assert any(each.rule == "accuracy" and each.op_type == "MatMul" for each in report.decisions)


def test_own_errors_are_known(bert: Path, tmp_path: Path) -> None:
    result = quantize(
        bert, tmp_path / "q.onnx", dynamic=True, dialect="onnxruntime", performance_threshold=None
    )
    own = [each.sqnr_db for each in result.report.decisions if each.dynamic]
    assert len(own) == PRODUCTS
    assert all(db is not None and db > 20.0 for db in own)


def test_a_dialect_without_it_says_so(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensorrt dialect quantizes no inputs at run time"):
        quantize(bert, tmp_path / "q.onnx", dynamic=True, engine="tensorrt")


def test_a_search_does_it_by_itself(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--dynamic: it tries that by itself"):
        quantize(bert, tmp_path / "q.onnx", dynamic=True, autotune=True, engine="onnxruntime")
