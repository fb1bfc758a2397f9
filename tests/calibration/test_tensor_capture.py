"""Values inside of a model, from a run of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.calibration import _instrumentation as tensor_capture
from qdqtune.calibration._instrumentation import capture_tensors
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from tests.conftest import model_from_text

TEXT = """g (float[2,3] x) => (float[2,3] y) {
    a = Neg(x)
    b = Shape(a)
    c = Mul(a, a)
    y = Sub(c, a)
}"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def prepared(folder: Path, text: str = TEXT) -> PreparedModel:
    proto = onnx.shape_inference.infer_shapes(model_from_text(text))
    return PreparedModel(ir.from_proto(proto), folder)


def test_values_are_those_of_the_run(worker: Worker, tmp_path: Path) -> None:
    shapes = {"c": (2, 3), "x": (2, 3), "b": (2,), "y": (2, 3)}
    found = dict(capture_tensors(prepared(tmp_path), worker, {"x": X}, shapes))
    assert found.keys() == shapes.keys()
    np.testing.assert_array_equal(found["x"], X)
    np.testing.assert_array_equal(found["c"], X * X)
    np.testing.assert_array_equal(found["y"], X * X + X)
    np.testing.assert_array_equal(found["b"], [2, 3])
    assert [file.name for file in tmp_path.glob("*.onnx")] == []


def test_what_is_too_much_at_once_is_taken_in_parts(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_capture, "_BYTES_AT_ONCE", 30)
    base = prepared(tmp_path)
    runs = []
    run = worker.run
    monkeypatch.setattr(worker, "run", lambda *given: runs.append(1) or run(*given))
    found = dict(capture_tensors(base, worker, {"x": X}, {"a": (2, 3), "c": (2, 3), "y": (2, 3)}))
    assert len(runs) == 3
    np.testing.assert_array_equal(found["a"], -X)
    np.testing.assert_array_equal(found["c"], X * X)


def test_what_the_reference_does_not_run_is_a_placeholder(worker: Worker, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "nobody.knows": 1]>
    g (float[2,3] x) => (float[2,3] y) { a = Relu(x) b = nobody.knows.Op(a) y = Neg(b) }"""
    proto = onnx.parser.parse_model(text)
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("b", 10, [2, 3]))
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 7, [2, 3]))
    for number, node in enumerate(proto.graph.node):
        node.name = f"n{number}"
    base = PreparedModel(ir.from_proto(proto), tmp_path)
    shapes = {"b": (2, 3), "a": (2, 3), "x": (2, 3)}
    found = dict(capture_tensors(base, worker, {"x": X}, shapes))
    assert (found["b"].shape, found["b"].dtype) == ((2, 3), np.float16)
    assert np.all(found["b"] > 0)
    # What may be an index into something is one that everything has.
    assert found["a"].dtype == np.int64
    assert not found["a"].any()
    np.testing.assert_array_equal(found["x"], X)
    assert [file.name for file in tmp_path.glob("*.onnx")] == []
