"""What OpenVINO tells about its layers, on a model that is read but not compiled."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
from tests.conftest import model_from_text

openvino = pytest.importorskip("openvino")
layer_times_of = pytest.importorskip("qdqtune.engines._openvino").layer_times_of


@pytest.fixture(scope="module")
def model():
    text = "g (float[4] x) => (float[4] y) { a = Add(w, w) b = Relu(x) y = Mul(a, b) }"
    proto = model_from_text(text, w=np.ones(4, np.float32))
    return openvino.Core().read_model(proto.SerializeToString())


def counters(**microseconds: int) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(node_name=name, real_time=timedelta(microseconds=us))
        for name, us in microseconds.items()
    ]


def test_what_depends_on_constants_only_is_no_layer(model):
    layers = layer_times_of(model, counters(n0=7, n1=2, y=3))
    assert [(layer.name, layer.op_type, layer.ms) for layer in layers] == [
        ("n1", "Relu", pytest.approx(0.002)),
        ("y", "Multiply", pytest.approx(0.003)),
    ]
    assert layers[1].inputs == layers[0].outputs == ("n1 output 0",)


def test_first_runs_don_t_count(model):
    """Two runs of 50 us and eight of 5 us have a mean of 14 us."""
    layers = layer_times_of(model, counters(n1=14, y=1), counters(n1=50, y=9), 2, 8)
    assert [layer.ms for layer in layers] == [pytest.approx(0.005), 0.0]
