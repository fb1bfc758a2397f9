"""Random inputs are legal for the model they are made for."""

from __future__ import annotations

import logging

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._shapes import infer_shapes
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._inputs import InputRequest
from tests.conftest import model_from_text


def index_of(proto: object) -> GraphIndex:
    model = ir.from_proto(proto)
    infer_shapes(model)
    return GraphIndex(model)


def test_the_same_seed_gives_the_same_inputs(residual: object) -> None:
    index = index_of(residual)
    first = list(random_inputs(index, 2, InputRequest(seed=3)))
    again = list(random_inputs(index, 2, InputRequest(seed=3)))
    other = list(random_inputs(index, 2, InputRequest(seed=4)))
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


def test_indices_are_followed_through_passthrough_ops() -> None:
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
    assert "N (x[0]), H (x[2])" in caplog.text


def test_text_has_no_random_values() -> None:
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


def test_shapes_are_those_asked_for() -> None:
    proto = model_from_text(
        "g (float[N,3,H] x, float[N] y) => (float[N,3,H] z, float[N] w) { z = Relu(x) w = Relu(y) }"
    )
    request = InputRequest(shapes={"x": (4, 3, 8)})
    feeds = next(random_inputs(index_of(proto), 1, request))
    assert feeds["x"].shape == (4, 3, 8)
    assert feeds["y"].shape == (4,)


def test_ranges_hold_and_both_ends_occur() -> None:
    proto = model_from_text(
        "g (int64[200] ids, float[200] x, bool[200] keep, uint8[200] mask)"
        " => (int64[200] a, float[200] b, bool[200] c, uint8[200] d)"
        " { a = Identity(ids) b = Identity(x) c = Identity(keep) d = Identity(mask) }"
    )
    ranges = {"ids": (-2, 3), "x": (-0.5, 0.25), "keep": (0, 1), "mask": (0, 1)}
    feeds = next(random_inputs(index_of(proto), 1, InputRequest(ranges=ranges)))
    assert set(feeds["ids"].tolist()) == {-2, -1, 0, 1, 2, 3}
    assert -0.5 <= feeds["x"].min() < -0.4
    assert 0.2 < feeds["x"].max() <= 0.25
    assert feeds["x"].dtype == np.float32
    assert set(feeds["keep"].tolist()) == {False, True}
    assert set(feeds["mask"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("dtype", "bounds"),
    [
        ("int64", (-(2**63), 2**63 - 1)),
        ("uint64", (0, 2**64 - 1)),
        ("double", (-1.7e308, 1.7e308)),
        ("float16", (-65504, 65504)),
        ("int8", (-128, 127)),
    ],
)
def test_a_range_may_fill_its_type(dtype: str, bounds: tuple[float, float]) -> None:
    proto = model_from_text(f"g ({dtype}[50] x) => ({dtype}[50] y) {{ y = Identity(x) }}")
    x = next(random_inputs(index_of(proto), 1, InputRequest(ranges={"": bounds})))["x"]
    assert len(np.unique(x)) > 30
    assert np.isfinite(x.astype(np.float64)).all()


@pytest.mark.parametrize(
    ("dtype", "ranges", "message"),
    [
        ("uint8", {"x": (0, 256)}, "uint8 holds 0 to 255"),
        ("uint8", {"x": (-1, 5)}, "does not fit its type"),
        ("float16", {"x": (0, 1e6)}, "float16 holds"),
        ("bool", {"x": (0, 2)}, "bool holds 0 to 1"),
        ("int64", {"x": (0, 0.5)}, "whole numbers"),
        ("float", {"xx": (0, 1)}, "no input 'xx'"),
    ],
)
def test_ranges_that_do_not_fit(
    dtype: str, ranges: dict[str, tuple[float, float]], message: str
) -> None:
    proto = model_from_text(f"g ({dtype}[5] x) => ({dtype}[5] y) {{ y = Identity(x) }}")
    with pytest.raises(UsageError, match=message):
        next(random_inputs(index_of(proto), 1, InputRequest(ranges=ranges)))


@pytest.mark.parametrize(("high", "warned"), [(8, False), (9, True)])
def test_a_range_beyond_the_table_is_warned_of(
    high: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    proto = model_from_text(
        "g (int64[3] ids) => (float[3,2] y) { y = Gather(table, ids) }",
        table=np.ones((9, 2), np.float32),
    )
    with caplog.at_level(logging.WARNING, "qdqtune"):
        next(random_inputs(index_of(proto), 1, InputRequest(ranges={"ids": (0, high)})))
    assert ("ids picks from 9 rows" in caplog.text) is warned
