"""Made-up inputs are legal for the model they are made for."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.calibration.inputs import random_inputs
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.errors import ModelError
from tests.conftest import model_from_text


def index_of(proto: object) -> GraphIndex:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return GraphIndex(model)


def test_the_same_seed_gives_the_same_inputs(residual: object) -> None:
    index = index_of(residual)
    first = list(random_inputs(index, 2, seed=3))
    again = list(random_inputs(index, 2, seed=3))
    other = list(random_inputs(index, 2, seed=4))
    np.testing.assert_array_equal(first[1]["x"], again[1]["x"])
    assert not np.array_equal(first[0]["x"], first[1]["x"])
    assert not np.array_equal(first[0]["x"], other[0]["x"])
    assert first[0]["x"].shape == (1, 3, 8, 8)
    assert first[0]["x"].dtype == np.float32


def test_integers_stay_within_what_they_index_and_masks_are_ones() -> None:
    proto = zoo.build("bert", layers=1, width=64, vocabulary=50, sequence=16)
    feeds = next(random_inputs(index_of(proto), 1))
    assert feeds["input_ids"].dtype == np.int64
    assert feeds["input_ids"].min() >= 0
    assert feeds["input_ids"].max() < 50
    assert len(np.unique(feeds["input_ids"])) > 5
    assert feeds["token_type_ids"].max() < 2
    assert (feeds["attention_mask"] == 1).all()


def test_indices_are_followed_through_moving_ops() -> None:
    proto = model_from_text(
        """
        g (int32[2,3] ids) => (float[2,3,4] y) {
            c = Cast<to=7>(ids)
            f = Reshape(c, s)
            e = Gather<axis=1>(table, f)
            t = Transpose<perm=[1,0]>(e)
            y = Reshape(t, o)
        }""",
        s=np.array([6]),
        o=np.array([2, 3, 4]),
        table=np.ones((4, 7), np.float32),
    )
    ids = np.concatenate([feeds["ids"] for feeds in random_inputs(index_of(proto), 50)])
    assert ids.min() == 0
    assert ids.max() == 6


def test_one_hot_depth_and_the_smallest_table_count() -> None:
    proto = model_from_text(
        """
        g (int64[3] ids) => (float[3,2] y, float[3,5] z) {
            y = Gather(table, ids)
            z = OneHot(ids, depth, values)
        }""",
        table=np.ones((9, 2), np.float32),
        depth=np.array(5),
        values=np.array([0, 1], np.float32),
    )
    ids = np.concatenate([feeds["ids"] for feeds in random_inputs(index_of(proto), 50)])
    assert ids.max() == 4


def test_open_dims_are_one_and_said_so(caplog: pytest.LogCaptureFixture) -> None:
    proto = model_from_text("g (float[N,3,H] x) => (float[N,3,H] y) { y = Relu(x) }")
    with caplog.at_level(logging.WARNING, "qdqtune"):
        feeds = next(random_inputs(index_of(proto), 1))
    assert feeds["x"].shape == (1, 3, 1)
    assert "x[0], x[2]" in caplog.text


def test_text_can_not_be_made_up() -> None:
    proto = model_from_text("g (string[2] x) => (string[2] y) { y = Identity(x) }")
    with pytest.raises(ModelError, match="it is text"):
        next(random_inputs(index_of(proto), 1))


def test_booleans_and_half_floats() -> None:
    proto = model_from_text(
        "g (bool[2] keep, float16[2] x) => (float16[2] y) { y = Where(keep, x, x) }"
    )
    feeds = next(random_inputs(index_of(proto), 1))
    assert feeds["keep"].all()
    assert feeds["x"].dtype == np.float16


def test_pixels_and_doubles_vary() -> None:
    proto = model_from_text(
        "g (uint8[4,9] pixels, double[9] x) => (uint8[4,9] y, double[9] z)"
        " { y = Identity(pixels) z = Neg(x) }"
    )
    feeds = next(random_inputs(index_of(proto), 1))
    assert len(np.unique(feeds["pixels"])) > 20
    assert len(np.unique(feeds["x"])) == 9
    assert feeds["x"].dtype == np.float64
