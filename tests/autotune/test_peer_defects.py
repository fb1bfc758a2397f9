"""One test for each known defect of the peer that regions, patterns and points could share."""

from __future__ import annotations

import pytest
from benchmarks.regions import split_concat_chain

from qdqtune.records._errors import InvalidSchemeError
from qdqtune.search.patterns._insertion_points import (
    ChildRegionInputInsertionPoint,
    NodeInputInsertionPoint,
    ResolvedInsertionPoint,
    merge_resolved_insertion_points,
    to_placement,
    why_not,
)
from qdqtune.search.patterns._region_pattern import RegionPattern
from qdqtune.search.regions._canonical import canonical_region
from qdqtune.search.regions._region import leaves
from qdqtune.search.regions._region_search import CombinedRegionSearch
from tests.autotune.graphs import composite, from_text, leaf, weight


def test_b3_a_divergent_start_is_not_lost() -> None:
    index = from_text(
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y)"
        "{ c = Conv(x, w) r = Relu(c) s = Sigmoid(c) y = Add(r, s) }",
        w=weight(4, 4, 1, 1),
    )
    (region,) = CombinedRegionSearch(index).search_regions()
    assert region.nodes == {0, 1, 2, 3}


def test_b4_two_convs_before_one_add_lie_in_disjoint_regions() -> None:
    index = from_text(
        "g (float[1,4,8,8] x, float[1,4,8,8] z) => (float[1,4,8,8] y)"
        "{ a = Conv(x, w) b = Conv(z, w) s = Add(a, b) y = Relu(s) }",
        w=weight(4, 4, 1, 1),
    )
    regions = CombinedRegionSearch(index).search_regions()
    nodes = [node for region in leaves(regions) for node in region.nodes]
    assert sorted(nodes) == [0, 1, 2, 3]


def test_b5_thirty_splits_in_a_row_end() -> None:
    index = split_concat_chain(30 * 3)  # doubling per unit would take hours
    regions = CombinedRegionSearch(index).search_regions()
    assert sum(len(region.nodes) for region in leaves(regions)) == 90


def test_b6_a_point_means_the_same_operand_however_an_add_is_written() -> None:
    text = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{ c = Conv(x, w) y = {} }}"
    one, two = (
        from_text(text.format(add), w=weight(4, 4, 1, 1)) for add in ("Add(c, x)", "Add(x, c)")
    )
    region = leaf(0, 1)
    assert RegionPattern.from_region(region, one) == RegionPattern.from_region(region, two)
    for place in range(2):
        point = NodeInputInsertionPoint(1, place)
        (here,), (there,) = point.resolve(region, one), point.resolve(region, two)
        assert here.tensor_name == there.tensor_name
        assert here.input_index != there.input_index


def test_b7_borders_are_ordered_by_structure_not_by_name() -> None:
    text = "g (float[8] {0}, float[8] {1}) => (float[8] y) {{ t = Sigmoid({0}) y = Sub(t, {1}) }}"
    tensors = []
    for names in (("a", "b"), ("b", "a")):
        index = from_text(text.format(*names))
        region = composite(leaf(0, 1, region_id=1))
        assert canonical_region(region, index).inputs == names
        (found,) = CombinedRegionSearch(index).search_regions()
        assert tuple(found.inputs) == names
        (point,) = ChildRegionInputInsertionPoint(0, 0).resolve(region, index)
        tensors.append((point.tensor_name, point.node_index))
    assert tensors == [("a", 0), ("b", 0)]


def test_b8_wiring_and_shapes_tell_patterns_apart() -> None:
    text = "g (float[{0}] x) => (float[{0}] y) {{ a = Sigmoid(x) b = Tanh(x) y = Sub({1}) }}"
    region = leaf(0, 1, 2)
    plain, crossed, large = (
        from_text(text.format(size, operands))
        for size, operands in [(8, "a, b"), (8, "b, a"), (16, "a, b")]
    )
    assert RegionPattern.from_region(region, plain) != RegionPattern.from_region(region, crossed)
    assert RegionPattern.from_region(region, plain) == RegionPattern.from_region(region, large)
    shaped = RegionPattern.from_region(region, plain, shapes=True)
    assert shaped != RegionPattern.from_region(region, large, shapes=True)
    with pytest.raises(InvalidSchemeError):
        NodeInputInsertionPoint(7, 7).resolve(region, plain)


@pytest.mark.parametrize("op", ["Conv(x, w)", "MatMul(x, v)"])
def test_b9_a_point_at_a_border_brings_the_weight(op: str) -> None:
    weights = {"w": weight(4, 4, 1, 1), "v": weight(8, 8)}
    used = {name: array for name, array in weights.items() if f" {name})" in op}
    index = from_text(
        f"g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{ a = {op} y = Relu(a) }}", **used
    )
    region = composite(leaf(0, region_id=1), leaf(1, region_id=2))
    resolved = ChildRegionInputInsertionPoint(0, 0).resolve(region, index)
    assert {(point.node_index, point.input_index) for point in resolved} == {(0, 0), (0, 1)}


def test_b10_what_never_pays_is_no_point() -> None:
    index = from_text(
        """
        g (float[2,8] x) => (float[2,8] y) {
            n = LayerNormalization(x, s, s)
            m = MatMul(n, w)
            b = Add(m, s)
            y = PRelu(b, s)
        }""",
        s=weight(8),
        w=weight(8, 8),
    )
    region = leaf(0, 1, 2, 3)
    form = canonical_region(region, index)
    points = NodeInputInsertionPoint.collect_from_region(region, index)
    edges = {
        (form.nodes[p.node_index], form.input_positions(p.node_index)[p.input_index])
        for p in points
    }
    assert edges == {(1, 0), (2, 0)}
    assert all(why_not(index, 0, position) for position in range(3))
    assert why_not(index, 2, 1)


def test_b11_one_edge_of_two_stays_one_edge() -> None:
    index = from_text("g (float[8] x) => (float[8] y) { y = Mul(x, x) }")
    region = leaf(0)
    one, two = (NodeInputInsertionPoint(0, place).resolve(region, index) for place in range(2))
    assert one != two
    assert merge_resolved_insertion_points(index, one) == one
    assert len(to_placement(index, one).edges) == 1
    assert merge_resolved_insertion_points(index, one | two) == {ResolvedInsertionPoint("x")}
