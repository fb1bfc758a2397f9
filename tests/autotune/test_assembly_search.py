"""Phase 3 against an oracle: what it asks, that it ends, and how good what it finds is."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune.search._space import Form, Group, Space, State
from qdqtune.search.strategies._assembly_search import AssemblySearch, SubgraphTask
from qdqtune.search.strategies._strategy import NO_TIME, SEEDS, Limits, Score, Trial
from qdqtune.search.subgraphs._assembly import assemble
from qdqtune.search.subgraphs._choices import Choices
from qdqtune.search.subgraphs._costs import Costs, Crossing, form_in
from qdqtune.search.subgraphs._observed_costs import ObservedCosts
from tests.conftest import model_from_text
from tests.cutting import cut

NOTHING: State = frozenset()
UNITS = 8
DRAWN = st.integers(0, 2**32)


@lru_cache
def chain() -> tuple[Space, Choices]:
    """Convs that are independent of each other: what is between them has no integer form."""
    body, last = "", "x"
    for number in range(UNITS):
        body += f"c{number} = Conv({last}, w) e{number} = Erf(c{number})\n"
        last = f"e{number}"
    text = f"g (float[1,4,8,8] x) => (float[1,4,8,8] {last}) {{ {body} }}"
    with tempfile.TemporaryDirectory() as folder:
        made = cut(model_from_text(text, w=np.ones((4, 4, 1, 1), np.float32)), Path(folder))
    groups = tuple(Group(f"p{n}", 0, "Conv", (f"n{2 * n}",)) for n in range(UNITS))
    each = tuple(frozenset({number}) for number in range(UNITS))
    return Space(made.planner, groups, {}), Choices(groups, each, each, (NOTHING,) * UNITS)


@lru_cache
def products() -> tuple[Space, Choices]:
    """Products that are independent of each other, and can also be dynamic."""
    body, last = "", "x"
    for number in range(UNITS):
        body += f"c{number} = MatMul({last}, w) e{number} = Erf(c{number})\n"
        last = f"e{number}"
    text = f"g (float[8,8] x) => (float[8,8] {last}) {{ {body} }}"
    with tempfile.TemporaryDirectory() as folder:
        made = cut(model_from_text(text, w=np.ones((8, 8), np.float32)), Path(folder))
    groups = tuple(
        Group(f"p{n}", 0, "MatMul", (f"n{2 * n}",), form=form)
        for form in (Form.WHOLE, Form.DYNAMIC)
        for n in range(UNITS)
    )
    each = tuple(frozenset({number}) for number in range(2 * UNITS))
    around = tuple(frozenset({number, number + UNITS}) for number in range(UNITS))
    return Space(made.planner, groups, {}), Choices(groups, each, around, (NOTHING,) * 2 * UNITS)


def costs(quantized: Sequence[float | None], as_float: float = 10.0, **more: object) -> Costs:
    return Costs((as_float,) * len(quantized), tuple(quantized), **more)  # type: ignore[arg-type]


Oracle = Callable[[State], float]
"""The true milliseconds of a choice."""


@dataclass
class Played:
    """A search that was played to its end, and all it asked."""

    search: AssemblySearch
    trials: list[Trial] = field(default_factory=list)

    @property
    def asked(self) -> int:
        return sum(len(trial.candidates) for trial in self.trials)

    @property
    def stages(self) -> list[str]:
        return [trial.stage for trial in self.trials]


def play(
    predicted: Costs,
    truth: Oracle,
    seeds: Mapping[str, State] | None = None,
    *,
    benchmarks: int = 12,
    alike: Sequence[State] = (),
    incremental: bool = True,
    frugal: bool = False,
    layers: Callable[[State], ObservedCosts] | None = None,
    noise: random.Random | None = None,
    refused: Callable[[State], bool] = lambda _: False,
    named: Callable[[State], Sequence[str]] = lambda _: (),
) -> Played:
    """Answer everything that a search asks.

    Args:
        predicted: What the subgraphs told.
        truth: What is true.
        seeds: By default the cheapest assembly, and everything.
        benchmarks: How many candidates it may ask about.
        alike: By default every unit is unlike the others.
        incremental: Whether it goes on after the seeds.
        frugal: Whether candidates are costly.
        layers: What the engine tells of a candidate's layers, if it does.
        noise: Makes scores wrong by about 1 %, as they say.
        refused: What the engine does not take.
        named: The ops that it then says it has no kernel for.
    """
    space, choices = products() if predicted.borderless_ms else chain()
    given = {"raw": assemble(predicted), "everything": space.everything} if seeds is None else seeds
    forms = range(len(choices.of_unit))
    known = frozenset(number for number in forms if predicted.form_ms(number) is not None)
    parts = alike or [part & known for part in choices.around]
    limits = Limits(benchmarks=benchmarks)
    played = Played(
        AssemblySearch(
            SubgraphTask(
                space,
                given,
                limits,
                choices=choices,
                costs=predicted,
                alike=parts,
                incremental=incremental,
                frugal=frugal,
            )
        )
    )

    def score(reference: State, state: State) -> Score:
        if refused(state):
            return Score.failed("the engine would not take it", named(state))
        gain = math.log(truth(reference) / truth(state))
        return Score(gain, 0.001) if noise is None else Score(gain + noise.gauss(0, 0.01), 0.01)

    for trial in played.search.trials():
        played.trials.append(trial)
        assert len(played.trials) < 100
        for state in trial.candidates:
            if layers is not None and not refused(state):
                played.search.observe(state, layers(state))
        played.search.tell(trial, [score(trial.reference, state) for state in trial.candidates])
    return played


def layers_of(truth: Costs) -> Callable[[State], ObservedCosts]:
    """An engine that tells its layers."""

    def look(state: State) -> ObservedCosts:
        times = {
            n: ms if number is None else (truth.form_ms(number) or ms)
            for n, ms in enumerate(truth.float_ms)
            for number in [form_in(state, n, len(truth.float_ms))]
        }
        quantized = {c.tensor: c.quantize_ms for c in truth.crossings if c.is_quantized_in(state)}
        back = {c.tensor: c.dequantize_ms for c in truth.crossings if c.is_dequantized_in(state)}
        return ObservedCosts(state, times, truth.rest_ms, quantized, back)

    return look


def random_costs(seed: int) -> Costs:
    """Some gain, some lose; neighbours pay for conversions between them."""
    rng = random.Random(seed)
    quantized = [rng.uniform(2.0, 14.0) for _ in range(UNITS)]
    crossings = [
        Crossing(
            f"t{n}", n, frozenset({n + 1}), rng.random() < 0.2, rng.uniform(0, 2), rng.uniform(0, 2)
        )
        for n in range(UNITS - 1)
    ]  # fmt: skip
    return costs(quantized, crossings=tuple(crossings), rest_ms=3.0)


def best_of(truth: Costs) -> State:
    """The true optimum, by trying everything."""
    every = (frozenset(n for n in range(UNITS) if bits >> n & 1) for bits in range(1 << UNITS))
    return min(every, key=truth.total_ms)


@pytest.mark.parametrize("seed", range(6))
def test_where_the_subgraphs_are_right_the_optimum_is_found_at_once(seed: int) -> None:
    truth = random_costs(seed)
    played = play(truth, truth.total_ms, layers=layers_of(truth))
    best = truth.total_ms(best_of(truth))
    assert truth.total_ms(played.search.best) == pytest.approx(best)
    first = played.trials[0]
    assert (first.reference, first.stage) == (NOTHING, SEEDS)
    assert played.search.gain == pytest.approx(math.log(truth.total_ms(NOTHING) / best))


def test_it_takes_few_candidates_where_no_doubt_is_left() -> None:
    truth = costs([2.0, 2.0, 30.0, 2.0, 30.0, 2.0, 2.0, 30.0])
    played = play(truth, truth.total_ms, layers=layers_of(truth))
    assert played.search.best == {0, 1, 3, 5, 6}
    assert played.asked <= 5


def test_where_the_subgraphs_lie_everything_may_still_win() -> None:
    """Wrong timings of one group: with it alone left float, all the others are slow."""

    def truth(state: State) -> float:
        return 100.0 if 4 not in state and state else 80.0 - 8.0 * len(state)

    predicted = costs([2.0, 2.0, 2.0, 2.0, 30.0, 2.0, 2.0, 2.0])
    assert 4 not in assemble(predicted)
    played = play(predicted, truth)
    assert played.search.best == frozenset(range(UNITS))
    raw, everything = played.search.batches[:2]
    assert (raw.stage, raw.accepted) == ("raw", False)
    assert raw.predicted > 2.0
    assert raw.measured is not None
    assert raw.measured < 1.0
    assert (everything.stage, everything.accepted) == ("everything", True)


@pytest.mark.parametrize("harmful", range(1, UNITS))
@pytest.mark.parametrize("tells", [True, False], ids=["layers", "no layers"])
def test_one_harmful_group_in_a_batch_is_found(harmful: int, tells: bool) -> None:
    """With layers it is seen, without them the batch is halved until it is alone."""
    predicted = costs([5.0] * UNITS)
    quantized = [5.0] * UNITS
    quantized[harmful] = 100.0
    truth = costs(quantized)
    played = play(
        predicted, truth.total_ms, {"one": frozenset({0})}, benchmarks=30,
        layers=layers_of(truth) if tells else None,
    )  # fmt: skip
    assert played.search.best == frozenset(range(UNITS)) - {harmful}
    assert "batches" in played.stages
    if tells:
        assert played.asked <= 8


def test_seeds_that_are_slower_than_float_are_taken_apart() -> None:
    """The engine tells no layers, and one group spoils all."""
    truth = costs([5.0, 5.0, 5.0, 5.0, 5.0, 90.0, 5.0, 5.0])
    played = play(costs([5.0] * UNITS), truth.total_ms, benchmarks=16)
    assert played.search.batches[0].accepted is False
    assert played.search.best == frozenset(range(UNITS)) - {5}


@given(most=st.integers(0, 12), seed=DRAWN)
@settings(max_examples=40)
def test_the_limit_is_kept(most: int, seed: int) -> None:
    truth, predicted = random_costs(seed), random_costs(seed + 100)
    played = play(predicted, truth.total_ms, benchmarks=most, noise=random.Random(seed))
    assert played.asked == played.search.asked <= most
    assert played.search.planned >= played.search.asked


@given(seed=DRAWN, tells=st.booleans())
@settings(max_examples=40)
def test_what_is_found_is_never_worse_than_a_seed(seed: int, tells: bool) -> None:
    truth, predicted = random_costs(seed), random_costs(seed + 100)
    seeds = {"raw": assemble(predicted), "everything": frozenset(range(UNITS)),
             "some": frozenset({seed % UNITS, 2})}  # fmt: skip
    layers = layers_of(truth) if tells else None
    played = play(predicted, truth.total_ms, seeds, layers=layers)
    found = truth.total_ms(played.search.best)
    assert found <= min(map(truth.total_ms, (NOTHING, *seeds.values()))) + 1e-9
    assert played.search.gain == pytest.approx(math.log(truth.total_ms(NOTHING) / found), abs=0.01)


def test_layers_of_wrong_subgraphs_lead_near_to_the_optimum() -> None:
    """The costs are put right by what is seen; that is worth more than asking."""
    shortfall = {True: 0.0, False: 0.0}
    for seed in range(20):
        truth, predicted = random_costs(seed), random_costs(seed + 100)
        best = truth.total_ms(best_of(truth))
        for tells in shortfall:
            layers = layers_of(truth) if tells else None
            played = play(predicted, truth.total_ms, layers=layers)
            shortfall[tells] += math.log(truth.total_ms(played.search.best) / best) / 20
    assert shortfall[True] < 0.01
    assert shortfall[True] < shortfall[False]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_asked_twice_nor_compared_with_itself(seed: int) -> None:
    truth, predicted = random_costs(seed), random_costs(seed + 100)
    played = play(predicted, truth.total_ms, benchmarks=30, noise=random.Random(seed))
    asked = [(t.reference, state, t.effort) for t in played.trials for state in t.candidates]
    assert len(asked) == len(set(asked))
    assert all(reference != state for reference, state, _ in asked)


def test_all_candidates_may_fail() -> None:
    truth = random_costs(0)
    played = play(truth, truth.total_ms, refused=bool)
    assert (played.search.best, played.search.gain) == (NOTHING, 0.0)
    assert all(batch.measured is None and not batch.accepted for batch in played.search.batches)


@pytest.mark.parametrize("bad", [0, 3])
def test_what_fails_is_never_kept_and_the_rest_is_still_found(bad: int) -> None:
    """Every seed has it: they are taken apart."""
    truth = costs([4.0] * UNITS)
    played = play(truth, truth.total_ms, benchmarks=30, refused=lambda state: bad in state)
    assert bad not in played.search.best
    assert len(played.search.best) >= UNITS // 2


@pytest.mark.parametrize("bad", [{3}, {0, 5}])
def test_what_the_engine_names_stays_float_and_the_rest_is_tried_at_once(bad: set[int]) -> None:
    """One cause after the other: no part of what failed has to be tried to find it."""
    truth = costs([4.0] * UNITS)
    played = play(
        truth, truth.total_ms, frugal=True,
        refused=lambda state: bool(bad & state),
        named=lambda state: [f"n{2 * min(bad & state)}"],
    )  # fmt: skip
    rest = frozenset(range(UNITS)) - bad
    assert played.search.best == rest
    assert played.asked == 1 + len(bad)
    assert [batch.stage for batch in played.search.batches][-1] == (
        "raw without what has no kernel"
    )


def test_what_other_choices_were_built_with_is_not_to_blame() -> None:
    """The layer that is named may be most of the model."""
    truth = costs([4.0] * UNITS)
    ruled = frozenset(range(UNITS - 2))
    everything = frozenset(range(UNITS))
    played = play(
        truth, truth.total_ms, {"everything": everything, "rules": ruled, "less": ruled - {0}},
        refused=lambda state: UNITS - 1 in state,
        named=lambda _: [f"n{2 * number}" for number in range(UNITS)],
    )  # fmt: skip
    asked = [state for trial in played.trials for state in trial.candidates]
    assert asked == [everything, ruled, ruled - {0}]  # what is left of everything is the rules
    assert played.search.best == ruled


def test_where_all_of_it_is_named_nothing_is_tried_again() -> None:
    truth = costs([4.0] * UNITS)
    played = play(
        truth, truth.total_ms, frugal=True, refused=bool,
        named=lambda _: [f"n{2 * number}" for number in range(UNITS)],
    )  # fmt: skip
    assert (played.search.best, played.search.refused) == (NOTHING, NOTHING)


def test_without_validation_only_the_seeds_are_asked_about() -> None:
    truth, predicted = random_costs(1), random_costs(101)
    raw = assemble(predicted)
    played = play(predicted, truth.total_ms, {"raw": raw}, incremental=False)
    assert [(t.stage, t.candidates) for t in played.trials] == [(SEEDS, (raw,))]
    assert played.search.best in (raw, NOTHING)


@pytest.mark.parametrize("seed", range(4))
def test_where_builds_take_long_few_candidates_are_asked_about(seed: int) -> None:
    truth, predicted = random_costs(seed), random_costs(seed + 100)
    frugal = play(predicted, truth.total_ms, layers=layers_of(truth), frugal=True, benchmarks=7)
    assert frugal.asked <= 7
    assert all(len(trial.candidates) == 1 for trial in frugal.trials if trial.stage != SEEDS)
    seeds = (NOTHING, assemble(predicted), frozenset(range(UNITS)))
    assert truth.total_ms(frugal.search.best) <= min(map(truth.total_ms, seeds)) + 1e-9


def test_where_builds_take_long_one_candidate_tells_of_all_doubtful_units() -> None:
    """Units that seem to lose a little: one of them gains, and the layers tell which."""
    predicted = costs([5.0] * 5 + [10.2] * 3)
    truth = costs([5.0] * 5 + [10.2, 7.0, 10.2])
    played = play(
        predicted, truth.total_ms, {"raw": frozenset(range(5))},
        layers=layers_of(truth), frugal=True,
    )  # fmt: skip
    asked = [state for trial in played.trials for state in trial.candidates]
    assert asked[1] == frozenset(range(UNITS))
    assert played.search.best == frozenset({0, 1, 2, 3, 4, 6})
    assert played.asked <= 6


def test_what_is_compiled_as_a_whole_is_not_taken_apart_where_builds_take_long() -> None:
    truth = costs([5.0] * 4 + [10.5] * 4)

    def divided(state: State) -> ObservedCosts:
        seen = layers_of(truth)(state)
        return replace(seen, divided_ms=seen.total_ms)

    seeds = {"everything": frozenset(range(UNITS)), "rules": frozenset(range(5))}
    played = play(truth, truth.total_ms, seeds, layers=divided, frugal=True)
    assert [trial.stage for trial in played.trials] == [SEEDS]
    assert played.search.best == seeds["rules"]
    taken_apart = play(truth, truth.total_ms, seeds, layers=layers_of(truth), frugal=True)
    assert taken_apart.search.best == frozenset(range(4))


@pytest.mark.parametrize("frugal", [False, True])
def test_what_is_predicted_is_known_before_it_is_timed(frugal: bool) -> None:
    truth = costs([4.0] * 4 + [11.0] * 4)
    played = play(costs([5.0] * UNITS), truth.total_ms, layers=layers_of(truth), frugal=frugal)
    asked = [(t.reference, state) for t in played.trials for state in t.candidates]
    predicted = list(played.search.predictions)
    assert [pair for pair in predicted if pair in asked] == asked
    told = {batch.predicted for batch in played.search.batches}
    assert told == {played.search.predictions[pair] for pair in asked}


def test_ops_that_are_known_to_have_no_kernel_are_not_tried() -> None:
    truth = costs([4.0] * UNITS)
    space, choices = chain()
    everything = frozenset(range(UNITS))
    task = SubgraphTask(
        space, {"everything": everything}, Limits(benchmarks=3), choices=choices, costs=truth,
        alike=choices.around, refused=frozenset({"n0"}),
    )  # fmt: skip
    search = AssemblySearch(task)
    (trial,) = search.ask()
    assert trial.candidates == (everything - {0},)


def test_what_there_was_no_time_for_has_no_row() -> None:
    truth = costs([4.0] * UNITS)
    search = play(truth, truth.total_ms, incremental=False).search
    again = AssemblySearch(search.task)  # type: ignore[arg-type]
    (trial,) = again.ask()
    again.tell(trial, [Score.failed(NO_TIME) for _ in trial.candidates])
    assert again.batches == []


def test_seeds_that_come_to_the_same_are_asked_once_and_empty_ones_never() -> None:
    truth = costs([4.0] * UNITS)
    everything = frozenset(range(UNITS))
    seeds = {"raw": everything, "everything": everything, "rules": NOTHING}
    played = play(truth, truth.total_ms, seeds)
    assert played.trials[0].candidates == (everything,)


def test_what_is_alike_is_flipped_together() -> None:
    alike = [frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})]
    quantized = [5.0] * 4 + [9.5] * 4
    played = play(costs(quantized), costs([5.0] * 4 + [11.0] * 4).total_ms, alike=alike)
    for trial in played.trials[1:]:
        for state in trial.candidates:
            assert (trial.reference ^ state) in (*alike, alike[0] | alike[1])
    assert played.search.best == alike[0]


def test_what_is_outside_all_units_counts_when_they_are_flipped() -> None:
    """By the times of the units all should be float; then what is between them would be, too."""
    truth = costs([1.01] * (UNITS - 1) + [2.6], as_float=1.0)
    everything = frozenset(range(UNITS))

    def rest_ms(state: State) -> float:
        return 10.0 - len(state)

    def layers(state: State) -> ObservedCosts:
        return replace(layers_of(truth)(state), rest_ms=rest_ms(state))

    def total_ms(state: State) -> float:
        return truth.total_ms(state) + rest_ms(state)

    seeds = {"everything": everything, "rules": frozenset({0, 1})}
    played = play(truth, total_ms, seeds, layers=layers, frugal=True, benchmarks=4)
    assert played.search.best == everything - {UNITS - 1}


def test_no_candidate_is_spent_on_what_hardly_matters() -> None:
    tiny = Costs((10.0,) + (0.001,) * 7, (5.0,) + (0.0012,) * 7)
    played = play(tiny, tiny.total_ms)
    assert played.asked <= 3


@pytest.mark.parametrize("seed", range(3))
def test_the_same_answers_make_the_same_search(seed: int) -> None:
    truth, predicted = random_costs(seed), random_costs(seed + 100)
    one, two = (
        play(predicted, truth.total_ms, noise=random.Random(seed), layers=layers_of(truth))
        for _ in range(2)
    )
    assert one.trials == two.trials
    assert (one.search.best, one.search.batches) == (two.search.best, two.search.batches)


def test_batches_tell_what_was_expected_and_what_came() -> None:
    truth, predicted = random_costs(2), random_costs(102)
    played = play(predicted, truth.total_ms, layers=layers_of(truth))
    batches = played.search.batches
    assert len(batches) >= 3
    taken = [batch for batch in batches if batch.accepted]
    assert taken
    for batch in batches:
        assert batch.quantized + batch.dropped > 0
        assert batch.predicted > 0.0
        assert replace(batch) == type(batch).from_dict(batch.to_dict())
    raw = batches[0]
    raw_state = assemble(predicted)
    assert raw.quantized == len(raw_state)
    assert raw.measured == pytest.approx(truth.total_ms(NOTHING) / truth.total_ms(raw_state))
    expected = predicted.total_ms(NOTHING) / predicted.total_ms(raw_state)
    assert raw.predicted == pytest.approx(expected)


def random_forms(seed: int) -> Costs:
    """Costs of three forms."""
    rng = random.Random(seed)
    borderless = (None if rng.random() < 0.2 else rng.uniform(3.0, 12.0) for _ in range(UNITS))
    return replace(random_costs(seed), borderless_ms=tuple(borderless))


@pytest.mark.parametrize("seed", range(6))
def test_with_three_forms_the_optimum_is_found_at_once_too(seed: int) -> None:
    truth = random_forms(seed)
    played = play(truth, truth.total_ms, layers=layers_of(truth))
    assert played.search.batches[0].stage == "raw"
    assert truth.total_ms(played.search.best) == pytest.approx(truth.total_ms(assemble(truth)))


def test_layers_put_the_costs_of_all_forms_right() -> None:
    shortfall = 0.0
    for seed in range(20):
        truth, predicted = random_forms(seed), random_forms(seed + 100)
        forms = zip(truth.borderless_ms, predicted.borderless_ms, strict=True)
        told = tuple(None if true is None else ms or 2.0 for true, ms in forms)
        predicted = replace(predicted, borderless_ms=told)
        played = play(predicted, truth.total_ms, layers=layers_of(truth), benchmarks=16)
        best = truth.total_ms(assemble(truth))
        shortfall += math.log(truth.total_ms(played.search.best) / best) / 20
        assert all(truth.form_ms(number) for number in played.search.best)
    assert shortfall < 0.03


@pytest.mark.parametrize("tells", [True, False], ids=["layers", "no layers"])
def test_units_change_from_one_form_to_the_other(tells: bool) -> None:
    """What is faster dynamic than quantized, and the other way round."""
    told = replace(costs([4.0] * UNITS), borderless_ms=(2.0, 2.0, *(6.0,) * (UNITS - 2)))
    layers = layers_of(told) if tells else None
    for seed in (frozenset(range(UNITS)), frozenset(range(UNITS, 2 * UNITS))):
        played = play(told, told.total_ms, {"one form": seed}, layers=layers)
        assert played.search.best == {UNITS, UNITS + 1, *range(2, UNITS)}
        (batch,) = [each for each in played.search.batches if each.stage == "batches"]
        assert (batch.quantized, batch.dropped) == (0, 0)  # all were quantized before


def test_a_form_that_is_slower_in_the_model_is_given_up() -> None:
    told = replace(costs([9.0] * UNITS), borderless_ms=(5.0,) * UNITS)
    truth = replace(told, borderless_ms=(5.0,) * (UNITS - 1) + (20.0,))
    played = play(told, truth.total_ms, layers=layers_of(truth))
    assert played.search.best == {*range(UNITS, 2 * UNITS - 1), UNITS - 1}


def test_nothing_to_choose_from_ends_at_once() -> None:
    space, _ = chain()
    empty = Space(space.planner, (), {})
    search = AssemblySearch(
        SubgraphTask(
            empty, limits=Limits(benchmarks=9), choices=Choices(), costs=costs([]), alike=[]
        )
    )
    assert not search.ask()
    assert (search.best, search.asked) == (NOTHING, 0)
