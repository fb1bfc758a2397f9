"""Whether a pair may stand at a tensor, and for whom."""

from __future__ import annotations

import numpy as np

from qdqtune.graph._index import GraphIndex
from qdqtune.search.patterns._insertion_points import (
    ResolvedInsertionPoint,
    get_autotuner_quantizable_ops,
    get_autotuner_skip_ops,
    resolve_region_io_insertion_points,
    skip_invalid_insertion_points,
)
from tests.autotune.graphs import composite, from_text, leaf, weight


def branches() -> GraphIndex:
    return from_text(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            a = Conv(x, w)
            s = Shape(a)
            r = Reshape(a, s)
            e = Exp(a)
            c = Conv(a, w)
            y = Sum(r, e, c)
        }""",
        w=weight(4, 4, 1, 1),
    )


def test_every_op_is_one_or_the_other() -> None:
    quantizable, skipped = get_autotuner_quantizable_ops(), get_autotuner_skip_ops()
    assert {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "MaxPool"} <= quantizable
    assert {"Shape", "Cast", "Not", "LayerNormalization", "QuantizeLinear"} <= skipped
    assert not quantizable & skipped


def test_nodes_and_regions() -> None:
    index = branches()
    conv, shape, *_, last, _ = index.nodes
    assert not skip_invalid_insertion_points(index, "x", conv)
    assert skip_invalid_insertion_points(index, "w", conv)  # it comes along with x
    assert skip_invalid_insertion_points(index, "a", shape)
    assert not skip_invalid_insertion_points(index, "a", last)
    assert skip_invalid_insertion_points(index, "a", leaf(1, 3))
    assert not skip_invalid_insertion_points(
        index, "a", composite(leaf(1, 3), leaf(4, region_id=1))
    )
    assert skip_invalid_insertion_points(index, "not there", conv)


def test_small_tensors() -> None:
    index = from_text(
        "g (float[1,4] x) => (float[1,4] y) { y = MatMul(x, w) }", w=np.ones((4, 4), np.float32)
    )
    assert skip_invalid_insertion_points(index, "x", index.nodes[0])


def test_b9_places_at_a_border_bring_the_weight() -> None:
    index = branches()
    into = {ResolvedInsertionPoint("a", 4, 0), ResolvedInsertionPoint("w", 4, 1)}
    reshape = ResolvedInsertionPoint("a", 2, 0)
    assert resolve_region_io_insertion_points(leaf(4), index, "a") == into
    assert resolve_region_io_insertion_points(leaf(1, 3), index, "a") == set()
    assert resolve_region_io_insertion_points(leaf(0), index, "a") == into | {reshape}
    assert resolve_region_io_insertion_points(None, index, "a") == into | {reshape}
