"""Which points there are, and where they lie in a model."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from qdqtune.autotune import ChildRegionOutputInsertionPoint
from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import InvalidSchemeError
from qdqtune.search.patterns._insertion_points import (
    ChildRegionInputInsertionPoint,
    InsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
    ResolvedInsertionPoint,
    has_quantizable_operations,
    merge_resolved_insertion_points,
    to_placement,
    why_not,
    why_not_output,
)
from tests.autotune.graphs import composite, from_text, leaf, weight


def conv_block() -> GraphIndex:
    return from_text(
        """
        g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            a = Conv(x, w, b)
            r = Relu(a)
            c = Conv(r, w)
            s = Add(c, x)
            y = Relu(s)
        }""",
        w=weight(4, 4, 1, 1),
        b=weight(4),
    )


def one_op(op: str, **weights: np.ndarray) -> GraphIndex:
    return from_text(
        f"g (float[2,8] x, float[1] one, int64[2] n, bool[2,8] m) => (y) {{ y = {op} }}", **weights
    )


def test_points_of_a_block() -> None:
    index, region = conv_block(), leaf(0, 1, 2, 3, 4)
    places = [(0, 0), (2, 0), (3, 0), (3, 1)]
    points = NodeInputInsertionPoint.collect_from_region(region, index)
    assert points == [NodeInputInsertionPoint(*place) for place in places]
    assert ChildRegionInputInsertionPoint.collect_from_region(region, index) == []
    assert RegionOutputInsertionPoint.collect_from_region(region, index) == []  # only leaves
    assert has_quantizable_operations(region, index)
    assert not has_quantizable_operations(leaf(1), index)


def test_a_weighted_op_is_quantized_whole() -> None:
    index, region = conv_block(), leaf(0, 1, 2, 3, 4)
    assert NodeInputInsertionPoint(0, 0).resolve(region, index) == {
        ResolvedInsertionPoint("x", 0, 0),
        ResolvedInsertionPoint("w", 0, 1),
    }


@pytest.mark.parametrize(("op", "anchor"), [("MatMul(x, w)", 0), ("MatMul(v, x)", 1)])
def test_the_point_stands_on_the_activation(op: str, anchor: int) -> None:
    weights = {"w": weight(8, 8), "v": weight(2, 2)}
    used = {name: array for name, array in weights.items() if name in op}
    index = one_op(op, **used)
    assert why_not(index, 0, anchor) == ""
    assert why_not(index, 0, 1 - anchor) == f"it comes along with input {anchor}"
    assert len(NodeInputInsertionPoint(0, anchor).resolve(leaf(0), index)) == 2


@pytest.mark.parametrize(
    ("op", "position", "reason"),
    [
        ("LayerNormalization(x, s, s)", 0, "no engine has an integer kernel"),
        ("LayerNormalization(x, s, s)", 1, "no engine has an integer kernel"),
        ("Gemm(x, w, s)", 2, "a bias"),
        ("Gemm(x, w, s)", 1, "comes along with input 0"),
        ("Add(x, s)", 1, "a constant"),
        ("Add(x, s)", 0, ""),
        ("PRelu(x, s)", 1, "no engine"),
        ("Mul(x, one)", 1, "has 1 elements only"),
        ("Mul(x, one)", 0, ""),
        ("Reshape(x, n)", 1, "reads its input 1 as it is"),
        ("Add(n, n)", 0, "is int64, not float"),
        ("Where(m, x, x)", 0, "as it is"),
        ("Where(m, x, x)", 2, ""),
        ("Clip(x, , one)", 1, "has no input 1"),
        ("Relu(x)", 5, "has no input 5"),
        ("Gather(w, n)", 0, ""),
    ],
)
def test_why_not(op: str, position: int, reason: str) -> None:
    weights = {"s": weight(8), "w": weight(8, 8)}
    used = {name: array for name, array in weights.items() if name in op.split("(")[1]}
    index = one_op(op, **used)
    found = why_not(index, 0, position)
    assert (reason in found) if reason else (found == "")


def test_ops_of_other_domains_have_no_points() -> None:
    index = one_op("MatMul(x, w)", w=weight(8, 8))
    index.nodes[0].domain = "com.acme"
    assert "no engine" in why_not(index, 0, 0)


def test_why_not_of_no_node() -> None:
    index = conv_block()
    assert why_not(index, 99, 0) == "there is no node 99"
    assert why_not(index, -1, 0) == "there is no node -1"
    assert why_not_output(index, 99, 0) == "there is no node 99"
    assert "no output 1" in why_not_output(index, 0, 1)


def test_why_not_of_outputs() -> None:
    index = conv_block()
    assert "part" in why_not_output(index, 0, 0)
    assert why_not_output(index, 1, 0) == ""
    assert why_not_output(index, 2, 0) == ""
    assert why_not_output(index, 4, 0) == "no node reads it"
    index = from_text(
        "g (float[8] x) => (float[8] y, int64[1] z)"
        "{ a = Sin(x) y = Cos(a) s = Shape(a) z = Neg(s) }"
    )
    assert "neither" in why_not_output(index, 0, 0)
    assert "int64" in why_not_output(index, 2, 0)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_half_types_are_fine(kind: type) -> None:
    name = {np.float16: "float16"}.get(kind, "bfloat16")
    index = from_text(
        f"g ({name}[2,8] x) => ({name}[2,8] y) {{ y = MatMul(x, w) }}",
        w=np.ones((8, 8), np.float32).astype(kind),
    )
    assert why_not(index, 0, 0) == ""


def test_points_of_a_composite() -> None:
    index = conv_block()
    region = composite(leaf(0, 1, region_id=1), leaf(2, 3, 4, region_id=2))
    points = ChildRegionInputInsertionPoint.collect_from_region(region, index)
    assert points == [ChildRegionInputInsertionPoint(*p) for p in [(0, 0), (1, 0), (1, 1)]]
    assert points[1].resolve(region, index) == {
        ResolvedInsertionPoint("r", 2, 0),
        ResolvedInsertionPoint("w", 2, 1),
    }
    assert NodeInputInsertionPoint.collect_from_region(region, index) == []


def test_outputs_are_whole_tensors() -> None:
    index = conv_block()
    (point,) = RegionOutputInsertionPoint.collect_from_region(leaf(0, 1), index)
    assert point == ChildRegionOutputInsertionPoint(None, 1, 0)
    assert point.resolve(leaf(0, 1), index) == {ResolvedInsertionPoint("r")}
    inner = composite(leaf(0, region_id=1), leaf(1, region_id=2))
    (point,) = RegionOutputInsertionPoint.collect_from_region(inner, index)
    assert point == RegionOutputInsertionPoint(1, None, 0)
    assert point.resolve(inner, index) == {ResolvedInsertionPoint("r")}


@pytest.mark.parametrize(
    "point",
    [
        NodeInputInsertionPoint(9, 0),
        NodeInputInsertionPoint(-1, 0),
        NodeInputInsertionPoint(0, 3),
        NodeInputInsertionPoint(0, -1),
        ChildRegionInputInsertionPoint(0, 0),
        RegionOutputInsertionPoint(None, 9, 0),
        RegionOutputInsertionPoint(None, 0, 4),
        RegionOutputInsertionPoint(0, None, 0),
        RegionOutputInsertionPoint(None, None, 0),
        RegionOutputInsertionPoint(0, 0, 0),
        RegionOutputInsertionPoint(None, 0, 0),
    ],
)
def test_foreign_points_are_refused(point: InsertionPoint) -> None:
    with pytest.raises(InvalidSchemeError) as caught:
        point.resolve(leaf(0, 1), conv_block())
    assert caught.value.hint


def test_a_point_that_cant_pay_here_stands_for_nothing() -> None:
    text = "g (float[{}] x) => (float[{}] y) {{ a = Sigmoid(x) y = Sigmoid(a) }}"
    large, small = from_text(text.format(8, 8)), from_text(text.format(4, 4))
    point = NodeInputInsertionPoint(0, 0)
    assert point.resolve(leaf(0, 1), large)
    assert point.resolve(leaf(0, 1), small) == set()


@pytest.mark.parametrize(
    "point",
    [
        NodeInputInsertionPoint(1, 2),
        ChildRegionInputInsertionPoint(3, 4),
        RegionOutputInsertionPoint(None, 5, 6),
        RegionOutputInsertionPoint(7, None, 8),
    ],
)
def test_file_form(point: InsertionPoint) -> None:
    assert type(point).from_dict(point.to_dict()) == point


@pytest.mark.parametrize(
    "body", [{}, {"node_index": 1}, {"node_index": "1", "input_index": 0}, {"a": 1}, [1, 2], None]
)
def test_broken_file_forms_are_refused(body: object) -> None:
    with pytest.raises(InvalidSchemeError):
        NodeInputInsertionPoint.from_dict(body)  # type: ignore[arg-type]


def test_to_placement() -> None:
    index = conv_block()
    points = {
        ResolvedInsertionPoint("x", 0, 0),
        ResolvedInsertionPoint("w", 0, 1),
        ResolvedInsertionPoint("r"),
    }
    placement = to_placement(index, points)
    assert placement.edges == {("x", "n0", 0), ("w", "n0", 1)}
    assert placement.outputs == {"r"}
    assert to_placement(index, [ResolvedInsertionPoint("w")]).edges == {
        ("w", "n0", 1),
        ("w", "n2", 1),
    }


@pytest.mark.parametrize(
    "point",
    [
        ResolvedInsertionPoint("nothing"),
        ResolvedInsertionPoint("x", 99, 0),
        ResolvedInsertionPoint("x", 0, 1),
        ResolvedInsertionPoint("x", 0),
        ResolvedInsertionPoint("x", -1, 0),
    ],
)
def test_places_of_another_model_are_refused(point: ResolvedInsertionPoint) -> None:
    with pytest.raises(InvalidSchemeError):
        to_placement(conv_block(), [point])


def test_merging_needs_every_edge() -> None:
    index = from_text("g (float[8] x) => (float[8] y) { a = Mul(x, x) y = Add(a, x) }")
    edges = [ResolvedInsertionPoint("x", *place) for place in [(0, 0), (0, 1), (1, 1)]]
    assert merge_resolved_insertion_points(index, edges[:2]) == set(edges[:2])
    assert merge_resolved_insertion_points(index, edges) == {ResolvedInsertionPoint("x")}
