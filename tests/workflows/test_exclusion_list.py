"""Lists for other tools: what stays float here stays float there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from qdqtune.cli.main import main
from qdqtune.records._errors import ModelError
from qdqtune.records._results import EXCLUSION_TOOLS
from qdqtune.report._tuning import exclusion_list
from qdqtune.workflows._export import float_nodes
from qdqtune.workflows._insert import insert
from qdqtune.workflows.tuning._folder import BASELINE, FINAL
from tests.conftest import model_from_text


class OneSample(CalibrationDataReader):
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.samples = iter([{"x": rng.normal(size=(1, 4, 8, 8)).astype(np.float32)}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.samples, None)


def quantize(model: Path, output: Path, nodes: list[str]) -> None:
    insert(model, output, nodes=tuple(nodes), dialect="onnxruntime")


@pytest.fixture
def float_path(tmp_path: Path) -> Path:
    """Four convs in a row, with a pool, a residual Add and a norm among them."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.normal(size=(4, 4, 1, 1)).astype(np.float32) for i in range(4)}
    weights |= {name: rng.uniform(0.5, 1, 4).astype(np.float32) for name in ("g", "b")}
    proto = model_from_text(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            c0 = Conv(x, w0)
            r0 = Relu(c0)
            c1 = Conv(r0, w1)
            a = Add(c1, r0)
            r1 = Relu(a)
            c2 = Conv(r1, w2)
            n = InstanceNormalization(c2, g, b)
            y = Conv(n, w3)
        }""",
        **weights,
    )
    names = ["first", "first.relu", "a+b (1)", "add", "relu", "third", "norm", "last"]
    for node, name in zip(proto.graph.node, names, strict=True):
        node.name = name
    path = tmp_path / "float.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize(
    ("nodes", "stay"),
    [
        (["first", "a+b (1)", "add", "third", "last"], ["norm"]),
        (["first", "a+b (1)", "add"], ["third", "norm", "last"]),
        (["third"], ["first", "first.relu", "a+b (1)", "add", "relu", "norm", "last"]),
    ],
)
def test_another_tool_leaves_the_same_nodes_float(
    float_path: Path, tmp_path: Path, nodes: list[str], stay: list[str]
) -> None:
    ours, theirs = tmp_path / "ours.onnx", tmp_path / "theirs.onnx"
    quantize(float_path, ours, nodes)
    names = exclusion_list("onnxruntime", float_nodes(ours, against=float_path))
    assert names == stay
    quantize_static(
        float_path, theirs, OneSample(), quant_format=QuantFormat.QDQ, nodes_to_exclude=names
    )
    assert float_nodes(theirs) == stay


def test_each_tool_gets_its_form() -> None:
    names = ["/layer.0/Conv", "a+b (1)"]
    assert exclusion_list("onnxruntime", names) == names
    assert exclusion_list("nncf", names) == {"names": names}
    patterns = exclusion_list("modelopt", names)
    for name, pattern in zip(names, patterns, strict=True):
        assert re.match(pattern, name)
        assert not re.match(pattern, f"{name}_2")
        assert not re.match(pattern, name.replace(".", "x").replace("+", "aa"))


def test_a_run_names_nodes_as_the_given_model_does(
    residual_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = tmp_path / "run", tmp_path / "list.json"
    run.mkdir()
    shutil.copy(residual_path, run / BASELINE)
    quantize(residual_path, run / FINAL, ["n3"])
    # n1 is the BatchNorm that was folded into the first Conv, which stays float.
    names = ["n0", "n1", "n2", "n4"]
    for tool in EXCLUSION_TOOLS:
        assert main(["export", str(run), "--exclusion-list", tool]) == 0
        assert json.loads(capsys.readouterr().out) == exclusion_list(tool, names)
    command = ["export", str(run), "--lists", "nncf", "-o", str(text)]  # its name before
    assert main(command) == 0
    assert capsys.readouterr().out == f"{text}: 4 nodes that stay float\n"
    assert json.loads(text.read_text()) == {"names": names}
    assert main(command) == 1  # it exists


def test_nodes_without_names_are_told(
    residual_path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bare, ours = tmp_path / "bare.onnx", tmp_path / "ours.onnx"
    proto = onnx.load(residual_path)
    proto.graph.node[-1].name = ""
    onnx.save(proto, bare)
    quantize(bare, ours, ["n0"])
    assert "n3" in float_nodes(ours, against=bare)
    assert "have no name of their own" in caplog.text


def test_a_float_model_has_no_list(residual_path: Path) -> None:
    with pytest.raises(ModelError, match="every node of it stays float"):
        float_nodes(residual_path)
