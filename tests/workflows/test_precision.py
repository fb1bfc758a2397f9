"""Converting files: what is written, what is measured, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtune import zoo
from qdqtune._command_configs import ConvertConfig
from qdqtune.graph._files import load_model
from qdqtune.records._errors import OutputError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._precision import Precision
from qdqtune.workflows._convert import convert_model
from tests.conftest import model_from_text


@pytest.mark.parametrize(
    ("precision", "keep_io", "least"),
    [(Precision.FP16, True, 50), (Precision.FP16, False, 50), (Precision.BF16, False, 30)],
)
def test_what_it_costs_is_measured(
    residual_path: Path, tmp_path: Path, precision: Precision, keep_io: bool, least: float
) -> None:
    output = tmp_path / "half.onnx"
    report = convert_model(residual_path, output, ConvertConfig(to=precision, keep_io=keep_io))
    assert report.output == output
    assert least < report.sqnr_db["y"] < 100
    assert report.overflow == ""
    onnx.checker.check_model(str(output), full_check=True)
    assert output.stat().st_size < residual_path.stat().st_size + 500


def test_back_to_float32(residual_path: Path, tmp_path: Path) -> None:
    half, back = tmp_path / "half.onnx", tmp_path / "back.onnx"
    convert_model(residual_path, half, ConvertConfig(to="bf16", keep_io=False))
    report = convert_model(half, back, ConvertConfig(to="fp32", keep_io=False))
    assert report.sqnr_db["y"] > 30
    assert not any(node.op_type == "Cast" for node in load_model(back).graph)


def test_the_first_node_that_overflows_is_named(tmp_path: Path) -> None:
    proto = model_from_text(
        """g (float[4] x) => (float[4] y) {
            a = Relu(x)
            b = Mul(a, k)
            c = Mul(b, k)
            d = Sub(c, c)
            y = Add(d, a)
        }""",
        k=np.array(1000, np.float32),
    )
    path = tmp_path / "large.onnx"
    onnx.save(proto, path)
    request = InputRequest(ranges={"x": (1.0, 2.0)})
    report = convert_model(path, tmp_path / "a.onnx", ConvertConfig(to="fp16", inputs=request))
    assert report.overflow == "n2"
    assert report.sqnr_db["y"] == -np.inf
    keeping = ConvertConfig(to="fp16", inputs=request, keep_nodes=["n2", "n3"])
    report = convert_model(path, tmp_path / "b.onnx", keeping)
    assert report.overflow == ""
    assert report.sqnr_db["y"] > 50


def test_a_model_that_may_see_nothing_stays_finite(tmp_path: Path) -> None:
    path = tmp_path / "bert.onnx"
    sizes = {"layers": 1, "width": 32, "head_width": 16, "sequence": 8, "vocabulary": 50}
    proto = zoo.build("bert", **sizes)
    (score,) = (tensor for tensor in proto.graph.initializer if tensor.name == "mask.score")
    score.CopyFrom(numpy_helper.from_array(np.finfo(np.float32).min.reshape(()), score.name))
    onnx.save(proto, path)
    masked = InputRequest(ranges={"attention_mask": (0, 0)})
    report = convert_model(path, tmp_path / "half.onnx", ConvertConfig(to="fp16", inputs=masked))
    assert min(report.sqnr_db.values()) > 40
    assert report.conversion.saturated == ("mask.score",)


def test_a_model_that_does_not_run_here_is_converted_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "nowhere": 1]>
        g (float[2] x) => (float[2] y) { a = Relu(x) b = nowhere.Strange(a) y = Neg(b) }"""
    )
    path = tmp_path / "strange.onnx"
    onnx.save(proto, path)
    report = convert_model(path, tmp_path / "half.onnx", ConvertConfig(to="fp16"))
    assert report.sqnr_db == {}
    assert "could not be measured here" in caplog.text


def test_what_is_refused(residual_path: Path, tmp_path: Path) -> None:
    target = tmp_path / "o.onnx"
    with pytest.raises(OutputError, match="exists already"):
        convert_model(residual_path, residual_path, ConvertConfig(to="fp16"))
    with pytest.raises(UsageError, match="no Softmax"):
        convert_model(residual_path, target, ConvertConfig(to="fp16", keep_ops=["Softmax"]))
    with pytest.raises(UsageError, match="no node 'nobody'"):
        convert_model(residual_path, target, ConvertConfig(to="fp16", keep_nodes=["nobody"]))
    assert not list(tmp_path.glob("*o.onnx*"))
