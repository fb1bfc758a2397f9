"""Shapes that inference can't tell are taken from a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune.calibration._instrumentation import observe_shapes, unknown_tensors
from qdqtune.engines._worker import Worker
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.records._errors import EngineError
from tests.conftest import model_from_text


@pytest.fixture
def model() -> ir.Model:
    proto = model_from_text(
        """
        g (float[N,3] x, bool flag) => (int64[R,K] z, float[A,B] w) {
            r = Relu(x)
            n = NonZero(r)
            t = Transpose(n)
            z = Identity(t)
            p = SequenceConstruct(r, r)
            c = ConcatFromSequence<axis=0>(p)
            w = If (flag) <
                then_branch = then () => (float[P,Q] a) { a = Relu(c) },
                else_branch = other () => (float[S,T] b) { b = Neg(r) }
            >
        }"""
    )
    loaded: ir.Model = ir.from_proto(proto)
    return loaded


def test_only_unknown_shapes_come_back_and_are_filled_in(model: ir.Model, tmp_path: Path) -> None:
    feeds = {"x": np.array([[1, -1, 1], [0, 0, 1]], np.float32), "flag": np.array(True)}
    before = {out.name: str(out.shape) for node in model.graph for out in node.outputs}
    with Worker() as worker, at_shapes(model, {"x": (2, 3), "flag": ()}):
        base = PreparedModel(model, tmp_path)
        assert "r" not in unknown_tensors(base.index)
        found = observe_shapes(base, worker, feeds)
        assert found["n"] == (2, 3)
        assert found["t"] == (3, 2)
        assert found["c"] == (4, 3)
        assert found["w"] == (4, 3)
        assert not {"r", "a", "b", "p"} & set(found)
        assert base.index.shape("t") == (3, 2)
        assert str(base.index.value["z"].shape) == "[R,K]"  # an output stays open
        assert set(unknown_tensors(base.index)) == {"z", "w"}
    assert before == {out.name: str(out.shape) for node in model.graph for out in node.outputs}
    assert not list(tmp_path.glob("shapes*"))


def test_nothing_unknown_takes_no_run(tmp_path: Path) -> None:
    proto = model_from_text("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    base = PreparedModel(ir.from_proto(proto), tmp_path)
    with Worker() as worker:
        assert observe_shapes(base, worker, {}) == {}
        assert worker.pid is None


def test_a_model_that_does_not_run(model: ir.Model, tmp_path: Path) -> None:
    feeds = {"x": np.ones((2, 4), np.float32), "flag": np.array(True)}
    base = PreparedModel(model, tmp_path)
    with Worker() as worker, pytest.raises(EngineError, match="can't be taken from a run"):
        observe_shapes(base, worker, feeds)
