"""The choices of subgraph mode: the best way to quantize each group, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qdqtune.records._tuning import BY_LAYERS, SchemeTimes, SubgraphTimes
from qdqtune.search._space import Form, Space
from qdqtune.search.subgraphs._choices import Choices, make_choices
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._quantizable_groups import (
    DYNAMIC,
    DYNAMIC_AND_FULL,
    FULL,
    NONE,
    RULES,
    WEIGHTS,
    QuantizableGroup,
    Subgraph,
    make_units,
)
from tests.conftest import model_from_text
from tests.cutting import Cut, cut, cut_zoo

TEXT = """g (float[64,64] x) => (float[64,64] y) {
    a = MatMul(x, v)
    b = Relu(a)
    c = Softmax(b)
    y = MatMul(c, w)
}"""


def products(folder: Path, dialect: str = "onnxruntime") -> Cut:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(64, 64)).astype(np.float32) for name in "vw"}
    return cut(model_from_text(TEXT, **weights), folder, dialect)


def all_in_one(folder: Path) -> Cut:
    """The same as one fusion group."""
    made = products(folder)
    return replace(made, groups=(FusionGroup(0, ("n0", "n1", "n2", "n3")),))


def told(
    subgraph: Subgraph, inside_ms: Mapping[str, float], conversion_ms: float = 0.0
) -> SubgraphTimes:
    """Times of a subgraph by form; all conversions at its borders cost the same."""
    borders = len(subgraph.content.inputs) + len(subgraph.content.outputs)
    forms = [
        SchemeTimes(name, ms, ms, (conversion_ms * (name != NONE),) * borders, (0.0,) * borders)
        for name, ms in inside_ms.items()
    ]
    return SubgraphTimes(subgraph.key, BY_LAYERS, tuple(forms))


def units_with(
    made: Cut, inside_ms: Mapping[str, float], conversion_ms: float = 0.0
) -> list[QuantizableGroup]:
    times = {subgraph.key: told(subgraph, inside_ms, conversion_ms) for subgraph in made.subgraphs}
    return make_units(made.subgraphs, times, made.planner)


@pytest.mark.parametrize(
    ("weights", "dynamic", "mixed", "expected"),
    [
        (2.0, 3.0, 4.0, (FULL, WEIGHTS)),
        (2.0, 1.0, 4.0, (FULL, DYNAMIC)),
        (2.0, 1.0, 0.5, (DYNAMIC_AND_FULL, DYNAMIC)),
    ],
)
def test_the_cheapest_scheme_of_each_kind_is_chosen(
    tmp_path: Path, weights: float, dynamic: float, mixed: float, expected: tuple[str, str]
) -> None:
    """What needs quantized neighbours does not compete with what doesn't."""
    together = {
        NONE: 4.0, FULL: 1.0, WEIGHTS: weights, DYNAMIC: dynamic, DYNAMIC_AND_FULL: mixed
    }  # fmt: skip
    (unit,) = units_with(all_in_one(tmp_path), together)
    assert unit.as_float.scheme == NONE
    assert (unit.scheme, unit.borderless) != (None, None)
    assert tuple(each.name for each in (unit.scheme, unit.borderless) if each) == expected
    assert unit.inputs == ({"x"} if expected[0] == FULL else set())
    assert not unit.is_passthrough


def test_times_that_an_earlier_version_did_not_take_are_not_needed(tmp_path: Path) -> None:
    for unit in units_with(products(tmp_path), {NONE: 4.0, FULL: 1.0}):
        assert unit.scheme is not None
        assert unit.scheme.name == FULL
        assert unit.schemes == (unit.scheme,)


def test_a_scheme_that_failed_is_not_chosen_and_a_subgraph_without_any_is_no_unit(
    tmp_path: Path,
) -> None:
    made = products(tmp_path)
    refused = SchemeTimes(FULL, error="the engine would not take it")
    times = {}
    for subgraph in made.subgraphs:
        whole = told(subgraph, {NONE: 4.0, FULL: 1.0, WEIGHTS: 2.0})
        first = subgraph.content.nodes[0]
        if first == "n0":
            forms = (whole.forms[0], refused, whole.forms[2])
        elif first == "n2":
            forms = (whole.forms[0], refused)
        else:
            forms = (SchemeTimes(NONE, error="refused"), *whole.forms[1:])
        times[subgraph.key] = SubgraphTimes(subgraph.key, BY_LAYERS, forms)
    (unit,) = make_units(made.subgraphs, times, made.planner)
    assert unit.scheme is None
    assert unit.borderless is not None
    assert unit.borderless.name == WEIGHTS
    assert unit.content.nodes[0] == "n0"
    # What was not profiled at all stays float.
    assert make_units(made.subgraphs, {}, made.planner) == []


def test_what_is_borderless_touches_no_border(tmp_path: Path) -> None:
    units = units_with(products(tmp_path), {NONE: 4.0, WEIGHTS: 1.0, DYNAMIC: 2.0})
    assert units
    for unit in units:
        assert unit.scheme is None
        assert not unit.inputs
        assert not unit.outputs
        assert unit.conversion_ms(unit.content.inputs[0]) == 0.0
        assert not unit.is_passthrough


@pytest.mark.parametrize("dialect", ["onnxruntime", "openvino", "tensorrt"])
def test_what_a_unit_reads_and_can_make_quantized(tmp_path: Path, dialect: str) -> None:
    """Kernels that write either form make it at no cost; only ONNX Runtime has a Softmax."""
    made = products(tmp_path, dialect)
    units = units_with(made, {NONE: 4.0, FULL: 1.0, WEIGHTS: 2.0})
    found = {unit.content.nodes[0]: (unit.inputs, unit.outputs) for unit in units}
    expected = {"n0": ({"x"}, {"b"}), "n3": ({"c"}, {"y"})}
    if dialect == "onnxruntime":
        expected["n2"] = ({"b"}, {"c"})
    assert found == expected


def test_a_result_that_another_op_changes_is_not_made_quantized(tmp_path: Path) -> None:
    text = "g (float[64,64] x) => (float[64,64] y) { a = MatMul(x, w) y = Tanh(a) }"
    weights = np.ones((64, 64), np.float32)
    base = cut(model_from_text(text, w=weights), tmp_path, "openvino")
    together = (FusionGroup(0, ("n0", "n1")),)
    made = Cut(base.base, base.planner, base.inserter, together, base.profile)
    (unit,) = units_with(made, {NONE: 4.0, FULL: 1.0, WEIGHTS: 2.0})
    assert (unit.inputs, unit.outputs) == ({"x"}, frozenset())


@pytest.mark.parametrize("name", ["resnet18", "bert", "shufflenet_v2"])
@pytest.mark.parametrize("dialect", ["onnxruntime", "tensorrt"])
def test_units_are_in_order_and_know_what_only_moves(
    name: str, dialect: str, tmp_path: Path
) -> None:
    made = cut_zoo(name, tmp_path, dialect)
    units = units_with(made, {NONE: 2.0, FULL: 1.0, RULES: 1.5, WEIGHTS: 3.0})
    numbers = [unit.group for unit in units]
    assert numbers == sorted(set(numbers))
    for unit in units:
        chosen = unit.scheme.nodes(unit.content)
        assert unit.is_passthrough == (set(chosen) <= made.planner.passthrough.keys())
        assert set(made.groups[unit.group].nodes) == set(unit.content.nodes)


def all_known(made: Cut) -> dict[str, SubgraphTimes]:
    return {subgraph.key: told(subgraph, {NONE: 4.0, FULL: 1.0}) for subgraph in made.subgraphs}


@pytest.fixture
def choices(tmp_path: Path) -> tuple[Choices, Space, list[QuantizableGroup]]:
    made = cut_zoo("bert", tmp_path)
    times = {NONE: 4.0, FULL: 2.0, RULES: 1.0, WEIGHTS: 1.5, DYNAMIC: 1.0}
    units = units_with(made, times)
    found = make_choices(units, made.subgraphs, all_known(made), made.planner, made.ruled)
    return found, Space(made.planner, found.groups, {}), units


def test_each_unit_has_groups_of_its_own(
    choices: tuple[Choices, Space, list[QuantizableGroup]],
) -> None:
    made, _, units = choices
    assert len(made.of_unit) == len(made.of_rival) == 2 * len(made.around) == 2 * len(units)
    assert sorted(n for groups in made.around for n in groups) == list(range(len(made.groups)))
    schemes = [unit.scheme for unit in units] + [unit.borderless for unit in units]
    assert {each.name for each in schemes if each is not None} >= {FULL, RULES, DYNAMIC}
    for number, (own, scheme) in enumerate(zip(made.of_unit, schemes, strict=True)):
        assert own <= made.around[made.unit(number)]
        content = units[made.unit(number)].content
        for form in Form:
            parts = (made.groups[n] for n in own if made.groups[n].form is form)
            nodes = {name for group in parts for name in group.nodes}
            assert nodes == (set(scheme.nodes(content, form)) if scheme is not None else set())


def test_states_and_units_are_each_others_inverse(
    choices: tuple[Choices, Space, list[QuantizableGroup]],
) -> None:
    made, _, units = choices
    dynamic = [n for n in range(len(units), 2 * len(units)) if made.of_unit[n]]
    others = set(range(len(units))).difference(map(made.unit, dynamic))
    for chosen in ([], [0], [1, 3], range(len(units)), dynamic[:1], [*dynamic, *others]):
        state = made.state(chosen)
        assert made.units(state) == frozenset(chosen)
        assert not made.otherwise(state)


def test_choices_mean_in_the_model_what_they_say(
    choices: tuple[Choices, Space, list[QuantizableGroup]],
) -> None:
    made, space, units = choices
    dynamic = frozenset(n for n in range(len(units), 2 * len(units)) if made.of_unit[n])
    state = made.state(dynamic)
    placement = space.placement(state)
    assert placement.dynamic
    assert not placement.edges
    assert space.nearest(placement) == space.closed(state) == state
    # From one form to another, and back.
    everything = made.state(range(len(units)))
    both = dynamic | frozenset(map(made.unit, dynamic))
    switched = made.flipped(everything, both)
    assert made.units(switched) == frozenset(range(len(units))) ^ both
    assert space.placement(switched).dynamic == placement.dynamic
    assert made.units(space.closed(switched)) >= dynamic
    assert made.flipped(switched, both) == everything
    assert made.touched(state) == frozenset(map(made.unit, dynamic))


def test_flips_leave_all_else_as_it_is(
    choices: tuple[Choices, Space, list[QuantizableGroup]],
) -> None:
    made, space, units = choices
    everything = space.everything
    split = [n for n, around in enumerate(made.around)
             if made.of_unit[n] != around & everything]  # fmt: skip
    assert split, "no unit can be quantized in two ways"
    assert made.otherwise(everything) == frozenset(split)
    flipped = made.flipped(everything, split[:1])
    assert everything - flipped == made.around[split[0]] & everything
    again = made.flipped(flipped, split[:1])
    assert again - flipped == made.of_unit[split[0]]
    assert made.otherwise(again) == frozenset(split[1:])
    assert made.flipped(frozenset(), range(len(units))) == made.state(range(len(units)))


def test_schemes_can_replace_what_another_choice_has(
    choices: tuple[Choices, Space, list[QuantizableGroup]],
) -> None:
    made, space, units = choices
    everything = space.everything
    every = range(len(units))
    assert made.with_schemes(everything, every) == made.state(every)
    assert made.with_schemes(everything, ()) == everything
    (first, *_) = made.otherwise(everything)
    once = made.with_schemes(everything, [first])
    assert everything ^ once == (made.around[first] & everything) - made.of_unit[first]
    assert first not in made.otherwise(once)


def test_a_rival_is_another_form_that_costs_hardly_more(tmp_path: Path) -> None:
    made = cut_zoo("bert", tmp_path)
    for others_ms, has_rivals in ((1.1, True), (2.0, False)):
        units = units_with(made, {NONE: 4.0, FULL: 1.0, RULES: others_ms, WEIGHTS: 1.05})
        found = make_choices(units, made.subgraphs, all_known(made), made.planner, made.ruled)
        assert any(unit.rival is not None for unit in units) == has_rivals
        for number, unit in enumerate(units):
            rival = found.of_rival[number]
            assert rival <= found.around[number]
            nodes = {name for group in rival for name in found.groups[group].nodes}
            assert nodes == (set(unit.rival.nodes(unit.content)) if unit.rival else set())
            assert unit.rival is None or {*unit.rival.forms} == {Form.WHOLE}
        with_rival = [number for number, unit in enumerate(units) if unit.rival is not None]
        state = found.with_rivals(found.state(range(len(units))), with_rival)
        assert found.otherwise(state) == frozenset(with_rival)


def test_what_the_rules_would_quantize_can_be_said(tmp_path: Path) -> None:
    made = cut_zoo("bert", tmp_path)
    units = units_with(made, {NONE: 4.0, FULL: 1.0, RULES: 2.0, WEIGHTS: 3.0})
    found = make_choices(units, made.subgraphs, all_known(made), made.planner, made.ruled)
    of_rules = {
        name for group in found.groups if made.ruled.issuperset(group.nodes) for name in group.nodes
    }
    assert of_rules == made.ruled & {name for group in found.groups for name in group.nodes}


def test_what_was_not_profiled_is_a_choice_of_no_unit(tmp_path: Path) -> None:
    made = cut_zoo("bert", tmp_path)
    known = {
        subgraph.key: told(subgraph, {NONE: 4.0, FULL: 1.0, WEIGHTS: 3.0})
        for subgraph in made.subgraphs[:3]
    }
    units = make_units(made.subgraphs, known, made.planner)
    found = make_choices(units, made.subgraphs, known, made.planner, made.ruled)
    in_units = frozenset().union(*found.around)
    rest = frozenset(range(len(found.groups))) - in_units
    names = {name for number in rest for name in found.groups[number].nodes}
    expected = {
        name
        for subgraph in made.subgraphs[3:]
        for content in subgraph.contents
        for name in subgraph.schemes[0].nodes(content)
    }
    assert names == expected
    assert rest
    # It may be quantized, and flips leave it as it is.
    everything = frozenset(range(len(found.groups)))
    assert found.flipped(everything, range(len(units))) == rest
    assert found.units(rest) == frozenset()


def test_what_can_not_be_timed_alone_is_a_choice_of_no_unit(tmp_path: Path) -> None:
    made = cut_zoo("bert", tmp_path)
    times = all_known(made)
    lost = made.subgraphs[0]
    times[lost.key] = SubgraphTimes(lost.key, BY_LAYERS, (SchemeTimes(NONE, error="can't"),))
    units = make_units(made.subgraphs, times, made.planner)
    assert lost.groups[0] not in {unit.group for unit in units}
    found = make_choices(units, made.subgraphs, times, made.planner, made.ruled)
    rest = frozenset(range(len(found.groups))).difference(*found.around)
    names = {name for number in rest for name in found.groups[number].nodes}
    assert names == {n for content in lost.contents for n in lost.schemes[0].nodes(content)}
