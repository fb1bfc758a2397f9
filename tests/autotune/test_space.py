"""What a search may choose, and what choices come to."""

from __future__ import annotations

import itertools

import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import ONNXRUNTIME, OPENVINO, OPENVINO_NO_VNNI
from qdqtune.search._space import Form, Group, Space, group_ops

MODEL = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] z)
<float[4, 4, 1, 1] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7,
 0.8}>
{
  [first] a = Conv (x, w)
  [relu] r = Relu (a)
  [pool] p = MaxPool <kernel_shape = [1, 1]> (r)
  [second] b = Conv (p, w)
  [add] z = Add (b, p)
}
"""
FIRST, POOL, SECOND, ADD = range(4)


@pytest.fixture
def space() -> Space:
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(MODEL))
    model = ir.from_proto(proto)
    planner = QuantizationPlanner(GraphIndex(model), ONNXRUNTIME)
    kinds = {"first": "Conv", "pool": "MaxPool", "second": "Conv", "add": "Add"}
    groups = [Group(f"p{name}", 0, kind, (name,)) for name, kind in kinds.items()]
    return Space(planner, groups, {"first": 0.5, "second": 0.3})


def states(space: Space) -> list[frozenset[int]]:
    return [
        frozenset(chosen)
        for size in range(len(space.groups) + 1)
        for chosen in itertools.combinations(range(len(space.groups)), size)
    ]


def test_potential_is_the_share_of_latency_as_far_as_known(space):
    assert space.potential == (0.5, 0.0, 0.3, 0.0)


def test_neighbours_share_a_tensor_or_one_behind_an_op_that_is_no_choice(space):
    assert space.pairs == ((FIRST, POOL), (POOL, SECOND), (POOL, ADD), (SECOND, ADD))
    assert space.around([FIRST]) == {FIRST, POOL}


def test_a_mover_alone_comes_to_nothing(space):
    assert space.key(frozenset({POOL})) == space.key(frozenset())
    assert space.closed(frozenset({POOL})) == frozenset()


def test_what_is_between_quantized_ops_is_quantized_with_them(space):
    assert space.closed(frozenset({FIRST, POOL, ADD})) >= {FIRST, POOL, ADD}


def test_equal_placements_have_equal_keys_and_equal_closed_choices(space):
    for one, other in itertools.combinations(states(space), 2):
        same = space.placement(one) == space.placement(other)
        assert (space.key(one) == space.key(other)) == same
        assert (space.closed(one) == space.closed(other)) == same


def test_closing_keeps_the_placement_and_closes_once(space):
    for state in states(space):
        closed = space.closed(state)
        assert space.key(closed) == space.key(state)
        assert space.closed(closed) == closed


def test_weighted_ops_bring_movers_along(space):
    assert space.weighted() == {FIRST, POOL, SECOND}
    assert space.of_ops({"Add"}) == {POOL, ADD}


def test_no_groups_are_a_space(space):
    empty = Space(space.planner, [], {})
    assert empty.everything == frozenset()
    assert empty.pairs == ()


@pytest.fixture(scope="module")
def encoder() -> GraphIndex:
    proto = zoo.build("bert", layers=1, width=32, head_width=16, sequence=8, vocabulary=50)
    return GraphIndex(ir.from_proto(onnx.shape_inference.infer_shapes(proto)))


def test_what_the_engine_quantizes_at_run_time_has_only_its_weights_stored(encoder):
    planner = QuantizationPlanner(encoder, OPENVINO)
    space = Space(planner, group_ops(encoder, planner).groups, {})
    dynamic = space.in_form(Form.DYNAMIC)
    names = {name for number in dynamic for name in space.groups[number].nodes}
    assert names == planner.may_be_dynamic
    placement = space.placement(dynamic)
    assert placement.edges == {edge for name in names for edge in planner.weight_edges(name)}
    assert planner.at_run_time(placement) == names
    assert space.closed(dynamic) == dynamic
    assert not space.needs_ranges(dynamic)


def test_what_is_quantized_whole_is_not_at_run_time(encoder):
    planner = QuantizationPlanner(encoder, OPENVINO)
    space = Space(planner, group_ops(encoder, planner).groups, {})
    dynamic = space.in_form(Form.DYNAMIC)
    assert not planner.at_run_time(space.placement(space.everything))
    one = min(dynamic)
    mixed = space.switched(space.weighted(), frozenset({one}))
    assert planner.at_run_time(space.placement(mixed)) == set(space.groups[one].nodes)
    assert space.closed(mixed) & dynamic == {one}
    assert space.switched(mixed, space.rivals({one})) & dynamic == set()


def test_without_the_instructions_no_op_is_quantized_at_run_time(encoder):
    planner = QuantizationPlanner(encoder, OPENVINO_NO_VNNI)
    space = Space(planner, group_ops(encoder, planner).groups, {})
    assert not space.in_form(Form.DYNAMIC)
