from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from qdqtune.calibration._output_error import add_scores

X = np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32)
Q = "s = Constant<value = float {0.1}>() z = Constant<value = uint8 {128}>()"


def model(tmp_path: Path, body: str, outputs: str = "float[2,5] y", opset: int = 17) -> Path:
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[2,5] x) => ({outputs}) {{{body}}}'
    )
    path = tmp_path / "model.onnx"
    onnx.save(parser.parse_model(text), path)
    return path


def run(path: Path) -> dict[str, np.ndarray]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": X}), strict=True))


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
@pytest.mark.parametrize("last", ["Softmax<axis = -1>", "LogSoftmax<axis = -1>"])
def test_scores_are_shown_without_what_they_have_in_common(
    last: str, opset: int, tmp_path: Path
) -> None:
    path, decided = add_scores(model(tmp_path, f"a = Abs(x) y = {last}(a)", opset=opset))
    ((name, output),) = decided.items()
    assert output == "y"
    scores = np.abs(X)
    np.testing.assert_allclose(
        run(path)[name], scores - scores.mean(axis=-1, keepdims=True), atol=1e-6
    )


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("a = Abs(x) y = Sigmoid(a)", "float[2,5] y"),
        ("a = Abs(x) b = Sigmoid(a) y = Identity(b)", "float[2,5] y"),
        ("a = Abs(x) y = ArgMax<axis = 1, keepdims = 0>(a)", "int64[2] y"),
        ("a = Abs(x) b = Sigmoid(a) y = ArgMax<axis = 1, keepdims = 0>(b)", "int64[2] y"),
        ("a = Softmax<axis = 1>(x) b = Softmax<axis = 0>(a) y = Sigmoid(b)", "float[2,5] y"),
    ],
)
def test_the_first_of_the_deciding_ops_counts(body: str, outputs: str, tmp_path: Path) -> None:
    path, decided = add_scores(model(tmp_path, body, outputs))
    shown = run(path)[next(iter(decided))]
    expected = np.abs(X) if "Abs" in body else X - X.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(shown, expected, atol=1e-6)


def test_what_an_op_reads_quantized_is_shown_quantized(tmp_path: Path) -> None:
    body = (
        f"{Q} a = Abs(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) y = Sigmoid(d)"
    )
    path, decided = add_scores(model(tmp_path, body))
    shown = run(path)[next(iter(decided))]
    np.testing.assert_allclose(shown, np.round(np.abs(X) / 0.1) * 0.1, atol=0.051)
    assert len(np.unique(np.round(shown / 0.1, 3) % 1)) == 1


def test_scores_of_any_float_type(tmp_path: Path) -> None:
    body = "h = Cast<to = 10>(x) y = Softmax<axis = -1>(h)"
    path, decided = add_scores(model(tmp_path, body, "float16[2,5] y"))
    assert run(path)[next(iter(decided))].dtype == np.float16


@pytest.mark.parametrize(
    "body", ["y = Abs(x)", "a = Softmax<axis = -1>(x) y = Neg(a)", "y = Identity(x)"]
)
def test_most_outputs_are_decided_by_no_scores(body: str, tmp_path: Path) -> None:
    path = model(tmp_path, body)
    assert add_scores(path) == (path, {})


def test_what_is_no_model_is_left_to_the_engine(tmp_path: Path) -> None:
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    assert add_scores(tmp_path / "junk.onnx") == (tmp_path / "junk.onnx", {})
