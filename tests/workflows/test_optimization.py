"""`optimize`: what was given comes back, smaller, and valid; and how to do without it."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import qdqtune
from qdqtune.cli.main import main
from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.workflows._optimize import optimize_file
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._time_budget import PRESETS
from qdqtune.workflows.tuning._tune import plan_tune
from tests.conftest import model_from_text

FOLDED = ["Conv", "Relu", "Conv", "Add"]


def op_types(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def test_a_path_comes_back_as_a_path(residual_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    before = residual_path.read_bytes()
    assert qdqtune.optimize(str(residual_path), str(out)) == out
    assert op_types(out) == FOLDED
    assert residual_path.read_bytes() == before
    with pytest.raises(UsageError, match="No output file was given"):
        qdqtune.optimize(residual_path, None)


def test_a_proto_comes_back_as_a_proto(residual: onnx.ModelProto, tmp_path: Path) -> None:
    before = residual.SerializeToString(deterministic=True)
    result = qdqtune.optimize(residual, tmp_path / "out.onnx")
    assert isinstance(result, onnx.ModelProto)
    assert [node.op_type for node in result.graph.node] == FOLDED
    assert op_types(tmp_path / "out.onnx") == FOLDED
    assert residual.SerializeToString(deterministic=True) == before


def test_an_ir_model_comes_back_as_one(residual: onnx.ModelProto) -> None:
    given = ir.from_proto(residual)
    before = fingerprint(given)
    result = qdqtune.optimize(given)
    assert isinstance(result, ir.Model)
    assert [node.op_type for node in result.graph] == FOLDED
    assert fingerprint(given) == before


def test_weights_beside_the_model_stay_beside_it(residual: onnx.ModelProto, tmp_path: Path) -> None:
    given, out = tmp_path / "given.onnx", tmp_path / "out.onnx"
    onnx.save(residual, given, save_as_external_data=True, location="w.bin", size_threshold=0)
    optimize_file(given, out)
    assert (tmp_path / "out.onnx.data").is_file()
    (tmp_path / "w.bin").unlink()
    x = np.ones((1, 3, 8, 8), np.float32)
    session = ort.InferenceSession(out, providers=["CPUExecutionProvider"])
    assert np.isfinite(session.run(None, {"x": x})[0]).all()
    assert sorted(os.listdir(tmp_path)) == ["given.onnx", "out.onnx", "out.onnx.data"]


def test_custom_domains_are_kept(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "com.example": 2, "local": 1]>
        g (float[4] x, bool c) => (float[4] y) {
            i = Identity(x)
            s = com.example.Strange<level = 3>(i)
            z = com.example.Strange<level = 3>(i)
            t = Add(s, z)
            y = If (c) <
                then_branch = a () => (float[4] p) { p = local.twice(t) },
                else_branch = b () => (float[4] q) { q = com.example.Odd(t) }>
        }
        <domain: "local", opset_import: ["": 17]>
        twice (v) => (w) { w = Add(v, v) }"""
    )
    before = [node.op_type for node in proto.graph.node]
    result = qdqtune.optimize(proto)
    assert [node.op_type for node in result.graph.node] == before[1:]
    assert {each.domain for each in result.opset_import} == {"", "com.example", "local"}
    assert len(result.functions) == 1


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    proto = model_from_text("g (float[2,4] x) => (float[7,7] y) { i = Relu(x) y = Identity(i) }")
    path, out = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    for model in (path, proto, ir.from_proto(proto)):
        with pytest.raises(ModelError, match="contradict each other"):
            qdqtune.optimize(model, out)  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_the_command_tells_what_changed(
    residual_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.onnx"
    command = ["optimize", str(residual_path), "-o", str(out)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "BatchNormalization       1    0" in text
    assert "gone: 1 folded or unused nodes" in text
    assert main(command) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([*command, "--force", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["nodes_before"] == {**record["nodes_after"], "BatchNormalization": 1}
    assert record["folded"] == 1
    assert record["qdq_nodes"] == 0


# Doing without.


@pytest.fixture
def cluttered_path(tmp_path: Path) -> Path:
    """An old file with a Constant node, a no-op, a constant that is moved, and a BatchNorm."""
    rng = np.random.default_rng(0)
    proto = model_from_text(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            k = Constant<value = float[1] {2.0}>()
            i = Identity(x)
            c = Conv(i, w)
            n = BatchNormalization(c, s, s, s, s)
            t = Reshape(k, shape)
            y = Mul(n, t)
        }""",
        13,
        w=rng.normal(size=(4, 4, 3, 3)).astype(np.float32)[:, :, :1, :1],
        s=rng.uniform(0.5, 1.5, 4).astype(np.float32),
        shape=np.array([1, 1, 1, 1]),
    )
    proto.ir_version = 3
    proto.graph.input.extend(
        onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in proto.graph.initializer
    )
    for node in proto.graph.node:
        node.name = ""
    path = tmp_path / "cluttered.onnx"
    onnx.save(proto, path)
    return path


def test_a_model_can_be_taken_as_it_is(cluttered_path: Path) -> None:
    source = open_source(cluttered_path, optimize=False)
    counts = Counter(node.op_type for node in source.model.graph)
    assert counts == Counter(["Identity", "Conv", "BatchNormalization", "Reshape", "Mul"])
    assert [value.name for value in source.model.graph.inputs] == ["x"]
    assert "k" in source.model.graph.initializers
    assert all(node.name for node in source.model.graph)
    assert all(node.outputs[0].shape is not None for node in source.model.graph)
    folded = open_source(cluttered_path).model
    assert [node.op_type for node in folded.graph] == ["Conv", "Mul"]


def test_tuning_can_take_it_as_it_is(cluttered_path: Path) -> None:
    nodes = [
        plan_tune(cluttered_path, engine="simulated", optimize=optimize).nodes
        for optimize in (True, False)
    ]
    assert nodes == [2, 5]


def test_results_with_and_without_are_told_apart(
    cluttered_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = replace(PRESETS["quick"].with_runs(1), final_s=0.1)
    monkeypatch.setitem(PRESETS, "quick", brief)
    command = ["tune", str(cluttered_path), "--engine", "simulated", "--preset", "quick", "-q"]
    command += ["--max_benchmarks", "1", "-o", str(tmp_path / "run")]
    assert main([*command, "--no_optimize"]) == 0
    conditions = json.loads((tmp_path / "run/summary.json").read_text())["conditions"]
    assert conditions["optimize"] is False
    assert main(command) == 2  # another model is in that folder
    assert len(load_model(tmp_path / "run/baseline.onnx").graph) == 6
