"""Folding: faster graphs, the same results, Q/DQ untouched, names kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from tests.conftest import model_from_text


def op_types(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def run(path: Path, **feeds: np.ndarray) -> list[np.ndarray]:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)


def test_batchnorm_disappears_and_the_conv_keeps_its_name(
    residual_path: Path, tmp_path: Path
) -> None:
    model = load_model(residual_path)
    assert fold(model)
    assert [(node.name, node.op_type) for node in model.graph] == [
        ("n0", "Conv"), ("n2", "Relu"), ("n3", "Conv"), ("n4", "Add"),
    ]  # fmt: skip
    folded = save_model(model, tmp_path / "folded.onnx")
    x = np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)
    np.testing.assert_allclose(run(folded, x=x)[0], run(residual_path, x=x)[0], atol=1e-5)


def test_folding_twice_changes_nothing(residual_path: Path) -> None:
    model = load_model(residual_path)
    fold(model)
    before = fingerprint(model)
    assert not fold(model)
    assert fingerprint(model) == before


def test_constants_fold_whatever_their_size() -> None:
    model = ir.from_proto(
        model_from_text(
            """
            g (float[4,300] x) => (float[4,200] y) {
                t = Transpose<perm=[1,0]>(w)
                y = MatMul(x, t)
            }""",
            w=np.ones((200, 300), np.float32),
        )
    )
    assert fold(model)
    assert op_types(model) == ["MatMul"]


def test_shapes_of_constants_are_not_blown_up() -> None:
    model = ir.from_proto(
        model_from_text(
            """
            g (float[1] x) => (float[5000,5000] y) {
                big = ConstantOfShape(s)
                y = Add(x, big)
            }""",
            s=np.array([5000, 5000]),
        )
    )
    fold(model)
    assert "ConstantOfShape" in op_types(model)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            """
            g (float[1,4] x) => (float[1,4] y) {
                q = QuantizeLinear(w, s, z)
                d = DequantizeLinear(q, s, z)
                y = MatMul(x, d)
            }""",
            ["QuantizeLinear", "DequantizeLinear", "MatMul"],
        ),
        (
            """
            g (float[1,4] x) => (float[1,4] y) {
                q, qs, qz = DynamicQuantizeLinear(w)
                d = DequantizeLinear(q, qs, qz)
                y = MatMul(x, d)
            }""",
            ["DynamicQuantizeLinear", "DequantizeLinear", "MatMul"],
        ),
    ],
    ids=["static", "dynamic"],
)
def test_quantization_is_never_folded(text: str, kept: list[str]) -> None:
    weights = {"w": np.eye(4, dtype=np.float32)}
    if "QuantizeLinear(w, s, z)" in text:
        weights |= {"s": np.array(0.1, np.float32), "z": np.array(0, np.int8)}
    model = ir.from_proto(model_from_text(text, **weights))
    fold(model)
    assert op_types(model) == kept


def test_a_shared_weight_is_not_changed_for_the_other_reader(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    proto = model_from_text(
        """
        g (float[1,4,5,5] x) => (float[1,4,5,5] y) {
            a = Conv(x, w)
            n = BatchNormalization(a, s, s, s, s)
            b = Conv(x, w)
            y = Add(n, b)
        }""",
        w=rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
        s=rng.uniform(0.5, 2, 4).astype(np.float32),
    )
    before, after = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(proto, before)
    model = load_model(before)
    fold(model)
    save_model(model, after)
    x = rng.normal(size=(1, 4, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(run(after, x=x)[0], run(before, x=x)[0], atol=1e-5)


def test_kernel_shapes_are_written_down(residual_path: Path) -> None:
    model = load_model(residual_path)
    fold(model)
    shapes = {
        node.name: tuple(node.attributes["kernel_shape"].as_ints())
        for node in model.graph
        if node.op_type == "Conv"
    }
    assert shapes == {"n0": (3, 3), "n3": (1, 1)}
