"""What is profiled: which subgraphs, in which forms, and that they are those of the whole model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from qdqtune import zoo
from qdqtune.records._tuning import BY_LAYERS, SchemeTimes, SubgraphTimes
from qdqtune.search._space import Form
from qdqtune.search.subgraphs._choices import make_choices
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._quantizable_groups import (
    ACTIVATIONS,
    DYNAMIC,
    DYNAMIC_AND_FULL,
    DYNAMIC_AND_UNFUSED,
    FULL,
    NONE,
    RULES,
    UNFUSED,
    WEIGHTS,
    find_subgraphs,
    make_units,
    placement_inside,
)
from tests.conftest import model_from_text
from tests.cutting import SMALL, Cut, cut, cut_zoo

DIALECTS = ("onnxruntime", "openvino", "tensorrt")

Encoded = tuple[Any, ...]


def encoded_inputs(proto: onnx.ModelProto, names: set[str]) -> dict[tuple[str, int], Encoded]:
    """What nodes read quantized: whether behind a Q or stored, and with which numbers."""
    makers = {output: node for node in proto.graph.node for output in node.output}
    constants = {each.name: each for each in proto.graph.initializer}
    base = {}
    for node in proto.graph.node:
        if node.name not in names:
            continue
        for position, tensor in enumerate(node.input):
            maker = makers.get(tensor)
            if maker is not None and maker.op_type == "DequantizeLinear":
                base[node.name, position] = _encoding(maker, makers, constants)
    return base


def _encoding(node: onnx.NodeProto, makers: dict, constants: dict) -> Encoded:
    numbers = [numpy_helper.to_array(constants[name]) for name in node.input[1:]]
    source = makers.get(node.input[0])
    axis = [attribute.i for attribute in node.attribute if attribute.name == "axis"]
    texts = [(each.dtype.str, each.shape, each.tobytes()) for each in numbers]
    return source.op_type if source is not None else "stored", texts, axis


def loaded(made: Cut, serialized: bytes) -> onnx.ModelProto:
    proto = onnx.ModelProto.FromString(serialized)
    onnx.external_data_helper.load_external_data_for_model(proto, str(made.base.store.folder))
    return proto


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", ["resnet18", "bert", "shufflenet_v2"])
def test_what_is_quantized_in_a_subgraph_is_what_is_quantized_there_in_the_model(
    name: str, dialect: str, tmp_path: Path
) -> None:
    made = cut_zoo(name, tmp_path, dialect)
    schemes = 0
    for subgraph in made.subgraphs:
        part = made.extracted(subgraph.content)
        inserter = made.inserter.of_part(part)
        for scheme in subgraph.schemes:
            placement = scheme.placement(subgraph.content, made.planner)
            inside = placement_inside(placement, subgraph.content, made.planner)
            names = set(subgraph.content.nodes)
            whole = loaded(made, made.inserter.serialized(placement))
            alone = loaded(made, inserter.serialized(inside))
            wanted, found = encoded_inputs(whole, names), encoded_inputs(alone, names)
            assert found.keys() == wanted.keys()
            # What is moved to the place of a weight has its type only where that is seen.
            differing = {place for place in wanted if wanted[place] != found[place]}
            assert {node for node, _ in differing} <= made.planner.passthrough.keys()
            assert not differing or dialect == "openvino"
            # What works is an integer kernel; what it makes so, others read so.
            kernels = {
                Form.WEIGHTS: made.planner.stored(placement),
                Form.ACTIVATIONS: made.planner.fed(placement),
                Form.WHOLE: made.planner.quantized(placement),
                Form.DYNAMIC: placement.dynamic & inside.dynamic,
                Form.UNFUSED: placement.unfused & inside.unfused,
            }
            assert wanted or not {Form.DYNAMIC, Form.UNFUSED}.isdisjoint(scheme.forms)
            for form, found_in in kernels.items():
                chosen = set(scheme.nodes(subgraph.content, form))
                assert found_in >= chosen & made.planner.compute.keys()
            assert dequantized(alone) == read_quantized_outside(made, whole, subgraph.content)
            schemes += 1
    assert schemes > 6


def dequantized(proto: onnx.ModelProto) -> set[str]:
    makers = {output: node.op_type for node in proto.graph.node for output in node.output}
    return {each.name for each in proto.graph.output if makers[each.name] == "DequantizeLinear"}


def read_quantized_outside(made: Cut, whole: onnx.ModelProto, content: Any) -> set[str]:
    """Outputs of a subgraph of which everybody outside reads the quantized form."""
    ops = {node.name: node for node in whole.graph.node}
    makers = {output: node.op_type for node in whole.graph.node for output in node.output}
    found = set()
    for tensor in content.outputs:
        outside = [e for e in made.index.readers(tensor) if e.node not in content.nodes]
        read = [ops[e.node].input[e.position] if e.node else tensor for e in outside]
        if read and all(makers.get(each) == "DequantizeLinear" for each in read):
            found.add(tensor)
    return found


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_in_a_model_with_everything_quantized_a_subgraph_is_what_it_is_alone(
    name: str, tmp_path: Path
) -> None:
    """Where pairs are not moved to where fewer do."""
    made = cut_zoo(name, tmp_path)
    whole = made.inserter.proto(made.planner.placement(made.planner.units))
    for subgraph in made.subgraphs:
        full = next(scheme for scheme in subgraph.schemes if scheme.name == FULL)
        for content in subgraph.contents:
            alone = made.inserter.proto(full.placement(content, made.planner))
            names = set(full.nodes(content)) & made.planner.compute.keys()
            assert reads_quantized(whole, names) >= reads_quantized(alone, names)


def reads_quantized(proto: onnx.ModelProto, names: set[str]) -> set[tuple[str, int]]:
    makers = {output: node.op_type for node in proto.graph.node for output in node.output}
    return {
        (node.name, position)
        for node in proto.graph.node
        if node.name in names
        for position, tensor in enumerate(node.input)
        if makers.get(tensor) == "DequantizeLinear"
    }


@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_subgraphs_hold_every_group_with_something_to_quantize_once(
    name: str, tmp_path: Path
) -> None:
    made = cut_zoo(name, tmp_path)
    units = made.planner.units
    wanted = [g.number for g in made.groups if any(node in units for node in g.nodes)]
    found = [number for subgraph in made.subgraphs for number in subgraph.groups]
    assert sorted(found) == wanted
    assert len({subgraph.key for subgraph in made.subgraphs}) == len(made.subgraphs)
    for subgraph in made.subgraphs:
        assert list(subgraph.groups) == sorted(subgraph.groups)
        for number, content in zip(subgraph.groups, subgraph.contents, strict=True):
            assert set(content.nodes) == set(made.groups[number].nodes)
            for scheme in subgraph.schemes:
                kinds = [made.index.node[each].op_type for each in scheme.nodes(content)]
                first = [made.index.node[each].op_type for each in scheme.nodes(subgraph.content)]
                assert kinds == first


TWICE = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Conv(x, w1)
    b = Relu(a)
    c = Conv(b, w2)
    y = Relu(c)
}"""


def twice(folder: Path) -> Cut:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(4, 4, 1, 1)).astype(np.float32) for n in (1, 2)}
    return cut(model_from_text(TWICE, **weights), folder)


def test_equal_groups_are_one_subgraph_unless_they_may_not_be_treated_equally(
    tmp_path: Path,
) -> None:
    made = twice(tmp_path)
    groups = [FusionGroup(0, ("n0", "n1")), FusionGroup(1, ("n2", "n3"))]
    everything = list(made.planner.units)
    may = {Form.WHOLE: everything}
    (subgraph,) = find_subgraphs(made.index, groups, made.planner, everything, may)
    assert subgraph.groups == (0, 1)
    # The rules, or a filter, see a difference.
    by_rules = find_subgraphs(made.index, groups, made.planner, ["n0"], may)
    assert [each.groups for each in by_rules] == [(0,), (1,)]
    (filtered,) = find_subgraphs(made.index, groups, made.planner, everything, {Form.WHOLE: ["n2"]})
    assert filtered.groups == (1,)
    assert find_subgraphs(made.index, groups, made.planner, everything, {}) == []
    keys = {each.key for each in (subgraph, *by_rules)}
    assert len(keys) == 3 - (by_rules[0].key == subgraph.key)


def test_schemes_that_come_to_the_same_are_not_tried_and_it_is_said_why(tmp_path: Path) -> None:
    made = cut_zoo("bert", tmp_path, "openvino")
    kinds = {
        subgraph.key: {scheme.name for scheme in subgraph.schemes} for subgraph in made.subgraphs
    }
    for subgraph in made.subgraphs:
        named = kinds[subgraph.key]
        assert FULL in named
        assert named.isdisjoint(subgraph.skipped)
        assert named | subgraph.skipped.keys() >= {FULL, RULES, WEIGHTS, ACTIVATIONS}
        assert all(subgraph.skipped.values())
        placements = [
            scheme.placement(subgraph.content, made.planner).digest() for scheme in subgraph.schemes
        ]
        assert len(placements) == len(set(placements))
    assert any(WEIGHTS in named for named in kinds.values())


@pytest.mark.parametrize(
    ("name", "dialect"), [("convnext", "onnxruntime"), ("efficientnet", "openvino")]
)
def test_no_form_is_the_float_one_nor_another_one_again(
    name: str, dialect: str, tmp_path: Path
) -> None:
    """Rules may choose nothing but moves in a subgraph, of what is float in there."""
    made = cut_zoo(name, tmp_path, dialect)
    for subgraph in made.subgraphs:
        found = [scheme.placement(subgraph.content, made.planner) for scheme in subgraph.schemes]
        assert all(found)
        assert len({placement.digest() for placement in found}) == len(found)


@pytest.mark.parametrize("dialect", ["tensorrt", "tensorrt-8"])
def test_engines_without_kernels_for_it_are_not_asked_about_weights_alone(
    dialect: str, tmp_path: Path
) -> None:
    made = cut_zoo("bert", tmp_path, dialect)
    assert made.subgraphs
    assert all(
        form is Form.WHOLE
        for subgraph in made.subgraphs
        for scheme in subgraph.schemes
        for form in scheme.forms
    )
    assert all(dialect in subgraph.skipped[WEIGHTS] for subgraph in made.subgraphs)


def test_rules_are_a_form_of_their_own_where_they_choose_a_part(tmp_path: Path) -> None:
    made = cut(zoo.build("resnet18", **SMALL["resnet18"]), tmp_path)
    (group,) = [g for g in made.groups if {made.index.node[n].op_type for n in g.nodes} >= {"Add"}][
        :1
    ]
    conv = [name for name in group.nodes if made.index.node[name].op_type == "Conv"]
    may = {Form.WHOLE: made.planner.units}
    (subgraph,) = find_subgraphs(made.index, [group], made.planner, conv, may)
    by_name = {scheme.name: scheme for scheme in subgraph.schemes}
    assert set(by_name[RULES].nodes(subgraph.content)) == set(conv)
    assert set(by_name[FULL].nodes(subgraph.content)) > set(conv)


NORMED = """g (float[8,32] x) => (float[8,32] y) {
    a = MatMul(x, w)
    b = Softmax(a)
    c = Add(b, x)
    y = LayerNormalization(c, s)
}"""


def normed(folder: Path) -> Cut:
    weights = {"w": np.ones((32, 32), np.float32), "s": np.ones(32, np.float32)}
    return cut(model_from_text(NORMED, **weights), folder)


def test_products_and_sums_have_forms_of_their_own(tmp_path: Path) -> None:
    made = normed(tmp_path)
    may = {Form.WHOLE: ["n0", "n1", "n2"], Form.DYNAMIC: ["n0"], Form.UNFUSED: ["n2"]}
    everything = [FusionGroup(0, ("n0", "n1", "n2", "n3"))]
    (subgraph,) = find_subgraphs(made.index, everything, made.planner, (), may)
    content = subgraph.content
    forms = {
        scheme.name: {form: set(scheme.nodes(content, form)) for form in {*scheme.forms}}
        for scheme in subgraph.schemes
    }
    assert forms[DYNAMIC] == {Form.DYNAMIC: {"n0"}}
    assert forms[DYNAMIC_AND_FULL] == {Form.DYNAMIC: {"n0"}, Form.WHOLE: {"n1", "n2"}}
    assert forms[UNFUSED] == {Form.UNFUSED: {"n2"}}
    assert forms[DYNAMIC_AND_UNFUSED] == {Form.DYNAMIC: {"n0"}, Form.UNFUSED: {"n2"}}
    is_alone = {scheme.name for scheme in subgraph.schemes if scheme.is_borderless}
    assert is_alone == {WEIGHTS, DYNAMIC, UNFUSED, DYNAMIC_AND_UNFUSED}
    # Where builds are slow, only the most promising.
    (few,) = find_subgraphs(made.index, everything, made.planner, (), may, few=True)
    assert few.skipped.keys() >= {DYNAMIC_AND_FULL}
    assert few.key == subgraph.key


def test_ops_without_ranges_may_still_be_dynamic_or_unfused(tmp_path: Path) -> None:
    made = normed(tmp_path)
    may = {Form.DYNAMIC: ["n0"], Form.UNFUSED: ["n2"]}
    groups = [FusionGroup(0, ("n0", "n1")), FusionGroup(1, ("n2",)), FusionGroup(2, ("n3",))]
    found = find_subgraphs(made.index, groups, made.planner, (), may)
    # A sum whose normalization is elsewhere costs the same alone, fused or not.
    assert [subgraph.groups for subgraph in found] == [(0,)]
    assert [scheme.name for scheme in found[0].schemes] == [DYNAMIC]
    times = {found[0].key: SubgraphTimes(found[0].key, BY_LAYERS, (SchemeTimes(NONE, 2.0, 2.0),))}
    assert make_units(found, times, made.planner) == []
    choices = make_choices([], found, {}, made.planner, ())
    assert choices.groups == ()
