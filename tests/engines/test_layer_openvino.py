"""What OpenVINO tells about its layers, on a model that is read but not compiled."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.conftest import model_from_text

openvino = pytest.importorskip("openvino")
engine = pytest.importorskip("qdqtune.engines._openvino")
layer_times_of, undisturbed_ms = engine.layer_times_of, engine.undisturbed_ms


@pytest.fixture(scope="module")
def model():
    text = "g (float[4] x) => (float[4] y) { a = Add(w, w) b = Relu(x) y = Mul(a, b) }"
    proto = model_from_text(text, w=np.ones(4, np.float32))
    return openvino.Core().read_model(proto.SerializeToString())


def test_what_depends_on_constants_only_is_no_layer(model):
    layers = layer_times_of(model, {"n0": 0.007, "n1": 0.002, "y": 0.003})
    assert [(layer.name, layer.op_type, layer.ms) for layer in layers] == [
        ("n1", "Relu", pytest.approx(0.002)),
        ("y", "Multiply", pytest.approx(0.003)),
    ]
    assert layers[1].inputs == layers[0].outputs == ("n1 output 0",)


def means(*spent_us: float) -> list[dict[str, float]]:
    """Return OpenVINO's counters after each of these runs: means so far, in whole microseconds."""
    sums = list(itertools.accumulate(spent_us))
    return [{"n1": (total // count) * 1e-3} for count, total in enumerate(sums, 1)]


def test_first_runs_don_t_count():
    spent = undisturbed_ms(means(50, 50, *[5] * 8), [0.05] * 2 + [0.005] * 8, 2)
    assert spent["n1"] == pytest.approx(0.005, abs=0.001)


def test_runs_that_were_disturbed_don_t_count():
    runs = [100, 4100, 8100, 100, 8100, 4100, 110, 4100, 4100, 4100]
    spent = undisturbed_ms(means(200, *runs), [each * 1e-6 for each in (200, *runs)], 1)
    assert spent["n1"] == pytest.approx(0.103, abs=0.005)


def test_of_equal_runs_all_count():
    runs = [100, 110, 105, 95, 100, 115, 100, 98]
    spent = undisturbed_ms(means(*runs), [each * 1e-6 for each in runs])
    assert spent["n1"] == pytest.approx(sum(runs) / len(runs) / 1e3, abs=0.001)
