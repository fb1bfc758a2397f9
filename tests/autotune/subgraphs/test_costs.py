"""From times of subgraphs to costs, and what whole models say about them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.subgraph_models import random_model

from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import LayerTime
from qdqtune.records._tuning import BY_LAYERS, SchemeTimes, SubgraphTimes
from qdqtune.search._space import Space
from qdqtune.search.subgraphs._assembly import assemble
from qdqtune.search.subgraphs._choices import make_choices
from qdqtune.search.subgraphs._costs import Costs, Crossing, costs_of, refined
from qdqtune.search.subgraphs._observed_costs import ObservedCosts, look_at
from qdqtune.search.subgraphs._quantizable_groups import (
    FULL,
    NONE,
    WEIGHTS,
    make_units,
)
from qdqtune.testing.simulated import PROFILES, kernels_of, true_latency_ms
from tests.conftest import model_from_text
from tests.cutting import Cut, cut, layers_of

ADDITIVE = replace(PROFILES["cpu-vnni"], fuses=False, has_layouts=False)
UNSEEN = ObservedCosts(frozenset(), {})


def of_groups(made: Cut) -> list[float]:
    """What each group of the float model costs, in truth."""
    home = {name: group.number for group in made.groups for name in group.nodes}
    times = [0.0] * len(made.groups)
    for kernel in kernels_of(onnx.ModelProto.FromString(made.base.whole()), made.profile):
        times[home[kernel.nodes[0]]] += kernel.ms
    return times


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 6, 8, 9, 10])
def test_where_costs_add_up_they_are_the_truth(seed: int, tmp_path: Path) -> None:
    made = cut(random_model(seed), tmp_path, profile=ADDITIVE)
    if any(node.op_type == "Flatten" for node in made.index.nodes):
        pytest.skip("a view has no form of its own")
    known = made.times()
    units = make_units(made.subgraphs, known, made.planner)
    choices = make_choices(units, made.subgraphs, known, made.planner, made.ruled)
    space = Space(made.planner, choices.groups, {})
    times = of_groups(made)
    own = {number: times[unit.group] for number, unit in enumerate(units)}
    plain = ObservedCosts(frozenset(), own, sum(times) - sum(own.values()))
    costs = costs_of(units, made.groups, made.index, plain)
    rng = random.Random(seed)
    for _ in range(8):
        density = rng.random()
        chosen = [n for n in range(len(units)) if rng.random() < density]
        state = choices.state(chosen)
        real = choices.units(space.closed(state))
        truth = true_latency_ms(made.inserter.proto(space.placement(state)), ADDITIVE)
        assert costs.total_ms(real) == pytest.approx(truth, rel=1e-9)


FORK = """g (float[1,8,16,16] x) => (float[1,8,16,16] y, float[1,8,16,16] z) {
    a = Conv(x, w)
    p = MaxPool<kernel_shape=[1,1]>(a)
    b = Conv(p, w)
    c = Conv(p, w)
    y = Erf(b)
    z = Erf(c)
}"""
FIRST, POOL, LEFT, RIGHT = range(4)


def fork(folder: Path, dialect: str = "onnxruntime", inside_ms: float = 1.0) -> tuple[Cut, Costs]:
    """One Conv and a pool whose result two others read; each conversion costs 0.25 at a border."""
    weights = np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)
    made = cut(model_from_text(FORK, w=weights), folder, dialect)
    times = {}
    for subgraph in made.subgraphs:
        borders = len(subgraph.content.inputs) + len(subgraph.content.outputs)
        forms = tuple(
            SchemeTimes(name, ms, ms, (0.25 * (name == FULL),) * borders, (0.125,) * borders)
            for name, ms in ((NONE, 4.0), (FULL, inside_ms), (WEIGHTS, 9.0))
        )
        times[subgraph.key] = SubgraphTimes(subgraph.key, BY_LAYERS, forms)
    units = make_units(made.subgraphs, times, made.planner)
    return made, costs_of(units, made.groups, made.index, UNSEEN)


def test_a_tensor_is_converted_once_however_many_read_it(tmp_path: Path) -> None:
    _, costs = fork(tmp_path)
    crossings = {crossing.tensor: crossing for crossing in costs.crossings}
    assert crossings["p"].producer == POOL
    assert crossings["p"].consumers == {LEFT, RIGHT}
    one, both = costs.total_ms({LEFT}), costs.total_ms({LEFT, RIGHT})
    assert both == one - 3.0 + exits(costs, RIGHT)
    assert costs.total_ms({FIRST, POOL, LEFT, RIGHT}) == pytest.approx(
        4.0 + crossings["x"].quantize_ms + exits(costs, LEFT) + exits(costs, RIGHT)
    )


def exits(costs: Costs, unit: int) -> float:
    """What it costs to hand on as floats what a unit makes."""
    return sum(c.dequantize_ms for c in costs.crossings if c.producer == unit)


def test_inputs_of_the_model_are_float_and_outputs_are_read_so(tmp_path: Path) -> None:
    _, costs = fork(tmp_path)
    crossings = {crossing.tensor: crossing for crossing in costs.crossings}
    assert crossings["x"].producer is None
    assert crossings["x"].consumers == {FIRST}
    ends = [crossing for crossing in costs.crossings if crossing.producer in (LEFT, RIGHT)]
    assert len(ends) == 2
    assert all(end.is_read_as_float and not end.consumers for end in ends)
    # A layout that is left or entered is paid with the conversion.
    assert crossings["x"].quantize_ms == 0.25 + 0.125
    assert crossings["a"].dequantize_ms == 0.25 + 0.125 + 0.125


def test_what_only_moves_follows_who_makes_what_it_moves(tmp_path: Path) -> None:
    _, costs = fork(tmp_path)
    assert costs.follows == ((POOL, FIRST),)
    assert not costs.never
    assert costs.total_ms({POOL}) == costs.total_ms(())
    assert costs.total_ms({FIRST, POOL}) != costs.total_ms({FIRST})


def test_a_move_is_never_dearer_quantized(tmp_path: Path) -> None:
    """Alone it may run as something that it is not between its neighbours."""
    _, costs = fork(tmp_path, inside_ms=50.0)
    assert costs.quantized_ms[POOL] == costs.float_ms[POOL] == 4.0
    assert costs.quantized_ms[FIRST] == 50.0


def test_a_move_of_what_is_always_float_is_never_quantized(tmp_path: Path) -> None:
    text = """g (float[1,8,16,16] x) => (float[1,8,16,16] y) {
        p = MaxPool<kernel_shape=[1,1]>(x)
        y = Conv(p, w)
    }"""
    made = cut(model_from_text(text, w=np.ones((8, 8, 1, 1), np.float32)), tmp_path)
    units = make_units(made.subgraphs, made.times(), made.planner)
    costs = costs_of(units, made.groups, made.index, UNSEEN)
    passthrough = [number for number, unit in enumerate(units) if unit.is_passthrough]
    assert costs.never == frozenset(passthrough)
    assert len(passthrough) == 1


def test_weights_alone_need_no_conversions(tmp_path: Path) -> None:
    text = "g (float[8,8] x) => (float[8,8] y) { a = MatMul(x, w) y = MatMul(a, w) }"
    made = cut(model_from_text(text, w=np.ones((8, 8), np.float32)), tmp_path)
    times = {}
    for subgraph in made.subgraphs:
        borders = len(subgraph.content.inputs) + len(subgraph.content.outputs)
        forms = tuple(
            SchemeTimes(name, ms, ms, (0.5 * (name == FULL),) * borders, (0.0,) * borders)
            for name, ms in ((NONE, 4.0), (FULL, 3.0), (WEIGHTS, 2.0))
        )
        times[subgraph.key] = SubgraphTimes(subgraph.key, BY_LAYERS, forms)
    units = make_units(made.subgraphs, times, made.planner)
    costs = costs_of(units, made.groups, made.index, UNSEEN)
    assert len(units) == 2
    assert (costs.quantized_ms, costs.borderless_ms) == ((3.0, 3.0), (2.0, 2.0))
    assert costs.total_ms({2}) == 6.0
    assert costs.total_ms({2, 1}) == 2.0 + 3.0 + 0.5 + 0.5
    assert costs.total_ms({0, 2}) == math.inf  # in two forms
    assert assemble(costs) == {2, 3}


def test_subgraphs_tell_ratios_and_the_model_tells_sizes(tmp_path: Path) -> None:
    """A subgraph alone finds its weights in the cache, in both of its forms."""
    made, alone = fork(tmp_path)
    units = make_units(made.subgraphs, {}, made.planner)
    assert units == []
    times = {
        subgraph.key: SubgraphTimes(
            subgraph.key,
            BY_LAYERS,
            tuple(
                SchemeTimes(name, ms, ms, (0.0,) * n, (0.0,) * n)
                for n in [len(subgraph.content.inputs) + len(subgraph.content.outputs)]
                for name, ms in ((NONE, 4.0), (FULL, 1.0), (WEIGHTS, 9.0))
            ),
        )
        for subgraph in made.subgraphs
    }
    units = make_units(made.subgraphs, times, made.planner)
    seen = ObservedCosts(frozenset(), {FIRST: 8.0, LEFT: 0.0}, rest_ms=5.0)
    costs = costs_of(units, made.groups, made.index, seen)
    assert (costs.float_ms[FIRST], costs.quantized_ms[FIRST]) == (8.0, 2.0)
    # What was not seen costs what it costs alone.
    assert (costs.float_ms[LEFT], costs.quantized_ms[LEFT]) == (4.0, 1.0)
    assert costs.rest_ms == 5.0
    assert alone.rest_ms == 0.0


CROSSING = Crossing("t", 0, frozenset({1}), False, 0.5, 0.5)
SUBGRAPHS = Costs((4.0, 4.0, 4.0), (1.0, 1.0, None), (CROSSING,))


def test_what_was_seen_in_a_model_counts_more_than_what_subgraphs_told() -> None:
    seen = ObservedCosts(frozenset({0}), {0: 2.0, 1: 3.0, 2: 5.0}, 0.0, {"u": 9.0}, {"t": 0.75})
    found = refined(SUBGRAPHS, [seen])
    assert found.float_ms == (4.0, 3.0, 5.0)
    assert found.quantized_ms == (2.0, 1.0, None)
    assert (found.crossings[0].quantize_ms, found.crossings[0].dequantize_ms) == (0.5, 0.75)
    assert refined(SUBGRAPHS, []) == SUBGRAPHS


def test_a_conversion_that_was_to_be_expected_and_not_seen_costs_nothing() -> None:
    taken_along = ObservedCosts(frozenset({0}), {0: 1.0})
    assert refined(SUBGRAPHS, [taken_along]).crossings[0].dequantize_ms == 0.0
    assert refined(SUBGRAPHS, [taken_along]).crossings[0].quantize_ms == 0.5
    not_needed = ObservedCosts(frozenset({0, 1}), {0: 1.0})
    assert refined(SUBGRAPHS, [not_needed]).crossings == SUBGRAPHS.crossings


def test_the_latest_model_counts_and_the_one_to_improve_before_all() -> None:
    old, new = (ObservedCosts(frozenset({1}), {1: ms}, quantize_ms={"t": ms}) for ms in (2.0, 3.0))
    own = ObservedCosts(frozenset({1}), {1: 7.0}, quantize_ms={"t": 7.0})
    assert refined(SUBGRAPHS, [new, old]).quantized_ms[1] == 3.0
    best = refined(SUBGRAPHS, [new, old], own)
    assert best.quantized_ms[1] == best.crossings[0].quantize_ms == 7.0


def test_another_form_of_a_unit_tells_nothing_but_in_the_model_that_has_it() -> None:
    other = ObservedCosts(frozenset({0}), {0: 9.0}, otherwise=frozenset({0}))
    assert refined(SUBGRAPHS, [other]).quantized_ms[0] == 1.0
    assert refined(SUBGRAPHS, [], other).quantized_ms[0] == 9.0


def test_each_form_of_a_unit_is_put_right_by_the_models_that_have_it() -> None:
    told = replace(SUBGRAPHS, borderless_ms=(2.0, None, 2.0))
    seen = [
        ObservedCosts(frozenset({3, 1}), {0: 1.5, 1: 1.25, 2: 5.0}),
        ObservedCosts(frozenset({0, 5}), {0: 1.75, 1: 6.0, 2: 3.0}, otherwise=frozenset({5})),
    ]
    found = refined(told, seen)
    assert found.float_ms == (4.0, 6.0, 5.0)
    assert found.quantized_ms == (1.75, 1.25, None)
    assert found.borderless_ms == (1.5, None, 2.0)
    # What is borderless is float to the others: the first model has quantized the tensor.
    assert (found.crossings[0].quantize_ms, found.crossings[0].dequantize_ms) == (0.0, 0.0)
    assert refined(told, seen[:1]).crossings[0].dequantize_ms == 0.5
    assert refined(told, [], seen[1]).borderless_ms == (2.0, None, 3.0)


def test_no_time_was_not_seen() -> None:
    fused = ObservedCosts(frozenset({0}), {0: 0.0})
    assert refined(SUBGRAPHS, [fused]).quantized_ms == SUBGRAPHS.quantized_ms


def quantized_fork(folder: Path) -> tuple[Cut, GraphIndex, list[LayerTime], dict[str, int]]:
    made, _ = fork(folder)
    conv = [name for name in made.planner.units if name in ("n0", "n1", "n2")]
    placement = made.planner.placement(conv)
    layers = layers_of(made.inserter.proto(placement), made.profile)
    unit_of = {f"n{n}": n for n in range(4)}
    return made, GraphIndex(made.inserter.model(placement)), layers, unit_of


def test_where_the_time_of_a_model_goes(tmp_path: Path) -> None:
    _, index, layers, unit_of = quantized_fork(tmp_path)
    seen = look_at(index, layers, unit_of, frozenset({FIRST, POOL, LEFT}))
    parts = (seen.unit_ms, seen.quantize_ms, seen.dequantize_ms)
    total = seen.rest_ms + sum(ms for part in parts for ms in part.values())
    assert total == pytest.approx(sum(layer.ms for layer in layers))
    assert seen.unit_ms.keys() == {FIRST, POOL, LEFT, RIGHT}
    assert set(seen.quantize_ms) == {"x"}
    assert set(seen.dequantize_ms) == {"b", "p"}


@pytest.mark.parametrize(
    ("quantized", "expected"),
    [
        (("n2",), ({"p": 0.5}, {}, 2.0)),
        (("n0",), ({}, {"p": 0.5}, 2.0)),
        ((), ({}, {}, 2.5)),
        (("n0", "n1", "n2", "n3"), ({}, {}, 2.5)),
    ],
)
def test_a_change_of_layout_between_integers_and_floats_is_a_conversion(
    quantized: tuple[str, ...], expected: tuple[object, ...], tmp_path: Path
) -> None:
    made, _ = fork(tmp_path)
    index = GraphIndex(made.inserter.model(made.planner.placement(quantized)))
    copied = "Reformatted Input Tensor 0 to n2"
    layers = [
        LayerTime("n0", "Conv", 2.0, origins=("n0",), inputs=("x",), outputs=("a",)),
        LayerTime("n1", "Pooling", 1.0, origins=("n1",), inputs=("a",), outputs=("p",)),
        LayerTime(
            "Reformatting CopyNode for Input Tensor 0 to n2", "Reformat", 0.5,
            inputs=("p",), outputs=(copied,),
        ),
        LayerTime("n2", "Conv", 2.0, origins=("n2",), inputs=(copied,), outputs=("b",)),
        LayerTime("n3", "Conv", 2.0, origins=("n3",), inputs=("p",), outputs=("c",)),
    ]  # fmt: skip
    seen = look_at(index, layers, {f"n{n}": n for n in range(4)}, frozenset())
    assert (seen.quantize_ms, seen.dequantize_ms, seen.unit_ms[LEFT]) == expected
    assert seen.total_ms == pytest.approx(7.5)


def test_a_layer_of_several_units_is_divided_by_what_they_weigh(tmp_path: Path) -> None:
    made, _ = fork(tmp_path)
    layers = [LayerTime("both", "Conv", 8.0, origins=("n2", "n3"))]
    unit_of = {f"n{n}": n for n in range(4)}
    equally = look_at(made.index, layers, unit_of, frozenset())
    assert equally.unit_ms == {LEFT: 4.0, RIGHT: 4.0}
    weighed = look_at(
        made.index, layers, unit_of, frozenset(), weights=[0.0, 0.0, 3.0, 1.0]
    )  # fmt: skip
    assert weighed.unit_ms == {LEFT: 6.0, RIGHT: 2.0}
    unknown = look_at(made.index, layers, unit_of, frozenset(), weights=[0.0] * 4)
    assert unknown.unit_ms == {LEFT: 4.0, RIGHT: 4.0}


def test_of_units_that_are_compiled_together_the_quantized_ones_cost_the_rest(
    tmp_path: Path,
) -> None:
    made, _ = fork(tmp_path)
    layers = [
        LayerTime("both", "Myelin", 8.0, origins=("n2", "n3")),
        LayerTime("alone", "Conv", 2.0, origins=("n0",)),
    ]
    unit_of = {f"n{n}": n for n in range(4)}
    weights, together = [2.0, 0.0, 1.0, 1.0], [FIRST, LEFT, RIGHT]
    plain = look_at(made.index, layers, unit_of, frozenset(), weights=weights, compiled=together)
    assert plain.unit_ms == {FIRST: 2.0, LEFT: 4.0, RIGHT: 4.0}
    assert (plain.divided_ms, plain.total_ms) == (8.0, 10.0)
    seen = look_at(
        made.index, layers, unit_of, frozenset({LEFT}), weights=weights, compiled=together
    )
    assert seen.unit_ms == {FIRST: 2.0, LEFT: 7.0, RIGHT: 1.0}
    apart = look_at(
        made.index, layers, unit_of, frozenset({LEFT}), weights=weights, compiled=[LEFT]
    )
    assert (apart.unit_ms, apart.divided_ms) == ({FIRST: 2.0, LEFT: 4.0, RIGHT: 4.0}, 0.0)


def test_what_is_converted_within_a_unit_is_its_own(tmp_path: Path) -> None:
    _, index, layers, unit_of = quantized_fork(tmp_path)
    seen = look_at(index, layers, dict.fromkeys(unit_of, 0), frozenset({0}))
    assert set(seen.quantize_ms) == {"x"}
    assert "p" not in seen.dequantize_ms
    assert seen.total_ms == pytest.approx(sum(layer.ms for layer in layers))


def test_who_quantizes_at_run_time_shares_what_that_costs(tmp_path: Path) -> None:
    text = """g (float[8,8] x) => (float[8,8] y, float[8,8] z) {
        y = MatMul(x, v)
        z = MatMul(x, w)
    }"""
    weights = {name: np.ones((8, 8), np.float32) for name in "vw"}
    made = cut(model_from_text(text, **weights), tmp_path)
    placement = made.planner.placement((), dynamic=["n0", "n1"])
    index = GraphIndex(made.inserter.model(placement))
    layers = [
        LayerTime(node.name or "", node.op_type, 1.0, origins=(node.name or "",))
        for node in index.nodes
    ]
    seen = look_at(index, layers, {"n0": 0, "n1": 1}, frozenset({2, 3}))
    assert len(layers) == 9
    assert seen.unit_ms == {0: 4.5, 1: 4.5}
    assert seen.rest_ms == 0.0


def test_weights_that_are_dequantized_in_every_run_cost_their_reader(tmp_path: Path) -> None:
    _, index, _, unit_of = quantized_fork(tmp_path)
    name = next(each for each in index.node if each.startswith("w") and "Dequantize" in each)
    layers = [LayerTime(name, "DequantizeLinear", 3.0, origins=(name,))]
    seen = look_at(index, layers, unit_of, frozenset())
    assert sum(seen.unit_ms.values()) == 3.0
    assert not seen.dequantize_ms
