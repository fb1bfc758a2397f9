"""The command that builds a model as it was measured, by version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text

from qdqtune.engines._registry import build_line
from qdqtune.records._measurement import EngineInfo

OPEN = """g (float[n,8] x) => (float[n,8] y) {
    q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Relu(d)
}"""


CASES = [
    ("tensorrt", "8.6.0", {"typing": "weak"}, "--fp16 --int8"),
    ("tensorrt", "8.6.0", {"typing": "weak", "precision": "fp32", "tactic_sources": "A"}, "--int8"),
    ("tensorrt", "10.16.1.11", {"level": "4"}, "--stronglyTyped --builderOptimizationLevel=4"),
    ("trtexec", "11.1.0", {"typing": "strong", "warmup_ms": "9"}, ""),
    ("trtexec", "10.3.0", {"args": "--sparsity=enable"}, "--stronglyTyped --sparsity=enable"),
]


@pytest.mark.parametrize(("engine", "version", "options", "said"), CASES)
def test_it_has_what_the_version_needs(
    engine: str, version: str, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    line = build_line(info(engine, version, options), model(tmp_path), {"x": (4, 8)}, "m.onnx")
    shapes = "--minShapes=x:4x8 --optShapes=x:4x8 --maxShapes=x:4x8"
    assert line.startswith("trtexec --onnx=m.onnx --saveEngine=model.engine")
    rest = line.split()[3:]
    assert sorted(rest) == sorted(f"{said} {shapes}".split())


def test_ranges_that_were_said_are_said(tmp_path: Path) -> None:
    options = {"typing": "strong", "min_shapes": "x:1x8", "max_shapes": "x:9x8"}
    line = build_line(info("tensorrt", "11.0", options), model(tmp_path), {"x": (4, 8)}, "a b.onnx")
    assert "'--onnx=a b.onnx'" in line
    assert line.endswith("--minShapes=x:1x8 --optShapes=x:4x8 --maxShapes=x:9x8")


def test_where_nothing_is_built_there_is_none(tmp_path: Path) -> None:
    assert build_line(info("onnxruntime", "1.31", {}), model(tmp_path), {}, "m") == ""
    assert build_line(info("tensorrt", "unknown", {}), model(tmp_path), {}, "m") == ""


def info(engine: str, version: str, options: dict[str, str]) -> EngineInfo:
    return EngineInfo(engine, version, "a GPU", "sm90", options=options)


def model(folder: Path) -> Path:
    path = folder / "m.onnx"
    onnx.save(model_from_text(OPEN, s=np.float32(0.1), z=np.int8(0)), path)
    return path
