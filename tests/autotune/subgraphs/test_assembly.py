"""The cheapest assembly: against all assemblies of small tables, and what holds for any table."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from benchmarks.subgraph_exact import ADDITIVE, assembled_ms, landscape
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune.search.subgraphs._assembly import assemble
from qdqtune.search.subgraphs._costs import Costs, Crossing, form_in, gain_of

# A solver that counts in whole units of a 2**29th of everything is off by that much per cost.
RESOLUTION = 2.0**-28
SEEDS = st.integers(0, 2**32)


def all_states(subgraphs: int) -> Iterator[frozenset[int]]:
    for count in range(subgraphs + 1):
        yield from map(frozenset, itertools.combinations(range(subgraphs), count))


def drawn_ms(rng: random.Random, kind: str) -> float:
    if kind == "ratios":
        return 10.0 ** rng.uniform(-6.0, 3.0)
    if kind == "ties":
        return float(rng.randrange(4))
    return 0.0 if rng.random() < 0.15 else rng.uniform(0.01, 1.0)


def drawn_crossing(rng: random.Random, kind: str, subgraphs: int, number: int) -> Crossing:
    producer = rng.choice([None, *range(subgraphs - 1)])
    later = range(0 if producer is None else producer + 1, subgraphs)
    consumers = frozenset(rng.sample(later, rng.randint(1, min(4, len(later)))))
    size = {"ties": 1.0, "ratios": 1.0}.get(kind, 0.4)
    crossing = Crossing(
        f"t{number}",
        producer,
        consumers,
        is_read_as_float=rng.random() < 0.2,
        quantize_ms=size * drawn_ms(rng, kind),
        dequantize_ms=size * drawn_ms(rng, kind),
    )
    if kind != "fused" or rng.random() < 0.3:
        return crossing
    makers = set(range(subgraphs)) - consumers if producer is None else {producer}
    fused_by = rng.choice([None, *sorted(makers)])
    return replace(crossing, fused_by=fused_by, fused_ms=rng.random() * crossing.quantize_ms)


def drawn_costs(seed: int, kind: str, subgraphs: int = 0) -> Costs:
    rng = random.Random(f"{kind} {seed}")
    subgraphs = subgraphs or rng.randint(2, 8)
    return Costs(
        tuple(drawn_ms(rng, kind) for _ in range(subgraphs)),
        tuple(None if rng.random() < 0.15 else drawn_ms(rng, kind) for _ in range(subgraphs)),
        tuple(
            drawn_crossing(rng, kind, subgraphs, n) for n in range(rng.randint(0, 2 * subgraphs))
        ),
    )


def everything_ms(costs: Costs) -> float:
    crossings = sum(each.quantize_ms + each.dequantize_ms for each in costs.crossings)
    return sum(costs.float_ms) + sum(filter(None, costs.quantized_ms)) + crossings


def slack_ms(costs: Costs) -> float:
    """What rounding to whole units may cost."""
    terms = 2 * len(costs.float_ms) + 2 * len(costs.crossings)
    return RESOLUTION * terms * everything_ms(costs) + 1e-12


@given(seed=SEEDS, kind=st.sampled_from(["plain", "ratios", "fused"]))
@settings(max_examples=180)
def test_nothing_is_cheaper(seed, kind):
    costs = drawn_costs(seed, kind)
    found = assemble(costs)
    best_ms = min(map(costs.total_ms, all_states(len(costs.float_ms))))
    assert costs.total_ms(found) <= best_ms + slack_ms(costs)


@given(seed=SEEDS)
@settings(max_examples=60)
def test_of_equals_the_one_with_the_fewest_quantized_subgraphs_is_taken(seed):
    costs = drawn_costs(seed, "ties")
    found = assemble(costs)
    states = list(all_states(len(costs.float_ms)))
    best_ms = min(map(costs.total_ms, states))
    assert costs.total_ms(found) == best_ms
    assert len(found) == min(len(state) for state in states if costs.total_ms(state) == best_ms)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (set(), 0.0),
        ({0}, 0.0),  # the kernel writes floats
        ({1}, 5.0),
        ({0, 1}, 5.0),  # one reads floats, the other integers
        ({0, 1, 2}, 1.0),
    ],
)
def test_a_kernel_quantizes_what_it_writes_if_nobody_reads_floats(state, expected):
    crossing = Crossing("t", None, frozenset({1, 2}), False, 5.0, fused_by=0, fused_ms=1.0)
    assert crossing.cost_ms(state) == expected
    assert replace(crossing, is_read_as_float=True).cost_ms({0, 1, 2}) == 5.0
    assert replace(crossing, producer=0).cost_ms(state) == expected


def test_what_moves_values_between_quantized_subgraphs_is_quantized_with_them():
    """Whose kernels quantize what they write do so before it is moved."""
    crossings = (
        Crossing("a", None, frozenset({1}), False, 5.0, fused_by=0),
        Crossing("b", None, frozenset({2}), False, 5.0, fused_by=1),
    )
    costs = Costs((10.0, 4.0, 10.0), (6.0, 1.0, 6.0), crossings, moves=((1, 0),))
    assert costs.total_ms({0, 2}) == costs.total_ms({0, 1, 2}) == 13.0
    assert replace(costs, moves=()).total_ms({0, 2}) == 6.0 + 4.0 + 6.0 + 5.0
    assert costs.total_ms({2}) == 10.0 + 4.0 + 6.0 + 5.0


def test_the_rest_costs_what_it_does_in_the_models_that_are_most_alike():
    costs = Costs((4.0, 4.0), (2.0, 2.0), rest_ms=9.0)
    seen = replace(costs, rests=((frozenset(), 8.0), (frozenset({0, 1}), 4.0)))
    assert costs.total_ms({0}) == 2.0 + 4.0 + 9.0
    assert seen.total_ms(()) == 8.0 + 8.0
    assert seen.total_ms({0, 1}) == 4.0 + 4.0
    assert seen.total_ms({0}) == 2.0 + 4.0 + 6.0  # as far from both


def with_borderless(costs: Costs, seed: int) -> Costs:
    """Three forms of subgraphs: some have no borderless one, and some are float or that only."""
    rng = random.Random(seed)
    count = len(costs.float_ms)
    borderless = (None if rng.random() < 0.2 else drawn_ms(rng, "plain") for _ in range(count))
    return replace(costs, borderless_ms=tuple(borderless))


def enumerated_ms(costs: Costs) -> float:
    """The least that any of the assemblies with three forms costs, by trying them all."""
    count = len(costs.float_ms)
    forms = zip(costs.float_ms, costs.quantized_ms, costs.borderless_ms, strict=True)
    tables = [[math.inf if ms is None else ms for ms in each] for each in forms]
    conversions = {
        state: sum(crossing.cost_ms(state) for crossing in costs.crossings)
        for state in all_states(count)
    }
    best = math.inf
    for choice in itertools.product(range(3), repeat=count):
        alone = sum(table[form] for table, form in zip(tables, choice, strict=True))
        quantized = frozenset(n for n, form in enumerate(choice) if form == 1)
        best = min(best, alone + conversions[quantized])
    return best


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_cheaper_among_three_forms(seed):
    costs = with_borderless(drawn_costs(seed, "fused" if seed % 2 else "plain"), seed)
    found = assemble(costs)
    assert costs.total_ms(found) <= enumerated_ms(costs) + slack_ms(costs)


def test_three_forms_are_all_taken_somewhere():
    """Else the enumeration would say nothing about them."""
    forms = set()
    for seed in range(20):
        costs = with_borderless(drawn_costs(seed, "plain", subgraphs=8), seed)
        found = assemble(costs)
        forms |= {form_in(found, unit, 8) for unit in range(8)}
        mixed = replace(costs, borderless_ms=())
        assert costs.total_ms(found) <= mixed.total_ms(assemble(mixed))
    assert None in forms
    assert len({number // 8 for number in forms if number is not None}) == 2


@pytest.mark.parametrize(
    ("fixed", "expected"),
    [({}, {3}), ({3: False}, {0}), ({0: False, 3: False}, set()), ({0: True}, {0}),
     ({1: True}, {1, 3}), ({4: True}, {3, 4}), ({5: True, 2: False}, {3, 5})],
)  # fmt: skip
def test_forms_can_be_fixed(fixed, expected):
    costs = Costs((4.0, 1.0, 1.0), (2.0, 2.0, 2.0), borderless_ms=(1.0, 3.0, 3.0))
    assert assemble(costs, fixed) == expected


@pytest.mark.parametrize("kind", ["plain", "ratios", "ties"])
def test_what_cannot_be_quantized_stays_float(kind):
    for seed in range(40):
        costs = drawn_costs(seed, kind, subgraphs=30)
        assert all(costs.quantized_ms[number] is not None for number in assemble(costs))


@pytest.mark.parametrize(
    ("as_float", "quantized", "expected"),
    [((), (), set()), ((0.0,), (0.0,), set()), ((1.0,), (1.0,), set()), ((1.0,), (0.5,), {0}),
     ((1.0,), (2.0,), set()), ((1.0,), (None,), set()), ((1.0,), (0.0,), {0}),
     ((3.0, 1.0, 2.0), (1.0, 3.0, 1.0), {0, 2})],
)  # fmt: skip
def test_subgraphs_without_crossings_choose_for_themselves(as_float, quantized, expected):
    assert assemble(Costs(as_float, quantized)) == expected


def fan_out(consumers: int, quantize_ms: float, gain_ms: float) -> Costs:
    """A float subgraph that many read, each of which gains a little."""
    count = consumers + 1
    crossing = Crossing("t", 0, frozenset(range(1, count)), quantize_ms=quantize_ms)
    quantized = (None, *(1.0 - gain_ms for _ in range(consumers)))
    return Costs((1.0,) * count, quantized, (crossing,))


@pytest.mark.parametrize(
    ("gain_ms", "expected"), [(0.011, frozenset(range(1, 51))), (0.009, frozenset())]
)
def test_a_tensor_that_fifty_read_is_converted_once(gain_ms, expected):
    costs = fan_out(50, 0.5, gain_ms)
    assert assemble(costs) == expected
    assert costs.total_ms(range(1, 51)) == pytest.approx(51.0 - 50 * gain_ms + 0.5)


@pytest.mark.parametrize(("float_readers", "expected"), [(0, {0, 1}), (1, set())])
def test_floats_are_made_once_for_all_who_read_them(float_readers, expected):
    """Whoever gains 0.3 can't pay 0.5 for a reader that stays float."""
    readers = 1 + 2 * float_readers
    crossing = Crossing("t", 0, frozenset(range(1, 1 + readers)), dequantize_ms=0.5)
    costs = Costs(
        (1.0,) * (1 + readers),
        (0.8, 0.9, *(None,) * (readers - 1)),
        (crossing, Crossing("out", 1, frozenset(), is_read_as_float=True, dequantize_ms=0.2)),
    )
    assert assemble(costs) == expected


def chain(subgraphs: int, seed: int) -> Costs:
    rng = random.Random(seed)
    crossings = tuple(
        Crossing(f"t{n}", n, frozenset({n + 1}), False, rng.uniform(0, 0.3), rng.uniform(0, 0.3))
        for n in range(subgraphs - 1)
    )
    as_float = tuple(rng.uniform(0.5, 1.5) for _ in range(subgraphs))
    quantized = tuple(
        None if rng.random() < 0.1 else rng.uniform(0.3, 1.5) for _ in range(subgraphs)
    )
    return Costs(as_float, quantized, crossings)


def chain_ms(costs: Costs) -> float:
    """The least that a chain can cost, subgraph by subgraph."""
    best = [0.0, 0.0]
    before: Crossing | None = None
    for number, (as_float, quantized) in enumerate(
        zip(costs.float_ms, costs.quantized_ms, strict=True)
    ):
        enter, leave = (before.quantize_ms, before.dequantize_ms) if before else (0.0, 0.0)
        low = math.inf if quantized is None else quantized
        best = [min(best[0], best[1] + leave) + as_float, min(best[1], best[0] + enter) + low]
        before = costs.crossings[number] if number < len(costs.crossings) else None
    return min(best)


@pytest.mark.parametrize("subgraphs", [2, 50, 5_000])
def test_chains_of_any_length_are_solved(subgraphs):
    costs = chain(subgraphs, 7)
    assert costs.total_ms(assemble(costs)) <= chain_ms(costs) + slack_ms(costs)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.floats(0.0, 3.0))
def test_a_constant_on_both_forms_of_a_subgraph_changes_nothing(seed, constant):
    costs = drawn_costs(seed, "plain")
    number = seed % len(costs.float_ms)
    as_float, quantized = list(costs.float_ms), list(costs.quantized_ms)
    as_float[number] += constant
    low = quantized[number]
    quantized[number] = None if low is None else low + constant
    shifted = replace(costs, float_ms=tuple(as_float), quantized_ms=tuple(quantized))
    found = assemble(shifted)
    best_ms = costs.total_ms(assemble(costs))
    assert costs.total_ms(found) == pytest.approx(best_ms, abs=slack_ms(shifted))


@given(st.integers(0, 10_000))
def test_a_crossing_with_one_reader_is_a_cost_between_two(seed):
    """By enumeration with a cost for each pair of neighbours that differ, and by the cut."""
    drawn = drawn_costs(seed, "plain", subgraphs=5)
    crossings = tuple(
        replace(each, consumers=frozenset({min(each.consumers)}), is_read_as_float=False)
        for each in drawn.crossings
    )
    costs = replace(drawn, crossings=crossings)

    def ms(state: frozenset[int]) -> float:
        total = costs.total_ms(state) - replace(costs, crossings=()).total_ms(frozenset())
        alone = sum(
            (costs.quantized_ms[n] or 0.0) - costs.float_ms[n] for n in state
        )  # fmt: skip
        pairs = 0.0
        for each in crossings:
            (reader,) = each.consumers
            if each.producer in state and reader not in state:
                pairs += each.dequantize_ms
            if each.producer not in state and reader in state:
                pairs += each.quantize_ms
        assert total == pytest.approx(alone + pairs)
        return alone + pairs

    legal = [s for s in all_states(5) if all(costs.quantized_ms[n] is not None for n in s)]
    assert ms(assemble(costs)) <= min(map(ms, legal)) + slack_ms(costs)


@given(st.integers(0, 10_000))
def test_costlier_conversions_never_make_a_model_cheaper(seed):
    costs = drawn_costs(seed, "plain")
    dearer = replace(
        costs,
        crossings=tuple(
            replace(each, quantize_ms=2 * each.quantize_ms, dequantize_ms=each.dequantize_ms + 0.1)
            for each in costs.crossings
        ),
    )
    least_ms = costs.total_ms(assemble(costs))
    assert dearer.total_ms(assemble(dearer)) >= least_ms - slack_ms(dearer)


@pytest.mark.parametrize("seed", [6, 7, 15, 22, 36])
def test_costs_that_add_up_give_the_best_of_all_placements(seed):
    """Of real Q/DQ models, on a simulated machine without fusion and layouts."""
    with landscape(seed, ADDITIVE, "cpu-vnni") as land:
        best_ms = land.best_ms(land.choices)
        assert best_ms < 0.9 * land.ms(())
        assert assembled_ms(land) == pytest.approx(best_ms, rel=1e-9)


def test_a_gain_is_the_logarithm_of_a_ratio():
    costs = Costs((4.0, 4.0), (2.0, None), (Crossing("t", 0, frozenset({1}), dequantize_ms=1.0),))
    assert gain_of(costs, {0}) == pytest.approx(math.log(8.0 / 7.0))
    assert gain_of(costs, (), {0}) == pytest.approx(-math.log(8.0 / 7.0))
    assert gain_of(costs, {1}) == 0.0
