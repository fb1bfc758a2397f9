from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from tests.conftest import model_from_text

from qdqtune.engines.layers._latency import estimated_shares, shares_of_latency
from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import LayerTime


@pytest.fixture
def index() -> GraphIndex:
    """n0 Conv, n1 Relu, n2 Conv, n3 Add, n4 MaxPool."""
    weights = np.zeros((4, 4, 1, 1), np.float32)
    text = """
    g (float[1,4,8,8] x) => (float[1,4,7,7] y) {
        c = Conv(x, w)
        r = Relu(c)
        d = Conv(r, w)
        a = Add(d, r)
        y = MaxPool <kernel_shape = [2, 2]> (a)
    }"""
    return GraphIndex(ir.from_proto(model_from_text(text, w=weights)))


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param(
            [LayerTime("n0 + n1", "Conv", 1.0), LayerTime("n2 + n3", "Conv", 2.0),
             LayerTime("n4", "MaxPool", 1.0)],
            id="joined names",
        ),
        pytest.param(
            [LayerTime("a", "Convolution", 1.0, origins=("Multiply_3", "n1"), outputs=("a#",)),
             LayerTime("b", "Reorder", 0.5, inputs=("a#",), outputs=("b#",)),
             LayerTime("c", "Convolution", 1.5, origins=("n2",), inputs=("b#",), outputs=("c#",)),
             LayerTime("d", "Pooling", 1.0, origins=("n4",), inputs=("c#",), outputs=("d#",))],
            id="origins",
        ),
    ],
)  # fmt: skip
def test_what_runs_inside_a_layer_counts_with_its_weighted_op(index, layers):
    shares = shares_of_latency(index, layers)
    assert shares == pytest.approx({"n0": 0.25, "n2": 0.5, "n4": 0.25})


def test_layers_of_which_too_little_is_known_are_not_trusted(index):
    layers = [LayerTime("n0", "Conv", 1.0), LayerTime("?", "kernel", 2.0)]
    assert shares_of_latency(index, layers) == estimated_shares(index)
    assert shares_of_latency(index, []) == estimated_shares(index)
    assert sum(estimated_shares(index).values()) == pytest.approx(1.0)


def test_work_of_a_product_of_activations_is_that_of_each_of_a_batch():
    text = """g (float[2,4,8,16] a, float[2,4,16,8] b, float[8,16] c) =>
        (float[2,4,8,8] y, float[8,8] z) { y = MatMul(a, b) z = MatMul(c, w) }"""
    index = GraphIndex(ir.from_proto(model_from_text(text, w=np.ones((16, 8), np.float32))))
    shares = estimated_shares(index)
    assert shares["n0"] == pytest.approx(8 * shares["n1"])
