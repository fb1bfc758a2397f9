"""Searches in which ops are float, quantized or dynamic, or kept from being fused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from benchmarks.search_quality import (
    NOISES,
    Outcome,
    Table,
    limits_for,
    replay,
    space_of,
    state_of,
    synthetic_forms_table,
    table,
)

from qdqtune.search._space import Form, Space

PROFILE = "cpu-dynamic"
SEEDS = 100
NEAR = 0.01


@pytest.fixture(scope="module")
def space() -> Space:
    return space_of("runs", PROFILE)


def play(played: Table, seeds: Iterable[int], strategy: str = "auto") -> list[Outcome]:
    limits = limits_for(played, "default")
    return [
        replay(played, seed, NOISES["usual"], limits, final=False, strategy=strategy)
        for seed in seeds
    ]


def near(found: Iterable[Outcome]) -> int:
    """How many ended within 1 % of the best of all placements."""
    return sum(outcome.loss <= NEAR for outcome in found)


def test_there_are_three_states_for_each_product(space: Space) -> None:
    assert len(space.in_form(Form.DYNAMIC)) == len(space.everything) == 4
    every = {space.key(state_of(bits)) for bits in range(2 ** len(space.groups))}
    assert len(every) == 3**4


def test_an_op_has_one_form(space: Space) -> None:
    """Whatever is flipped, closed or proposed: the placement tells the forms apart."""
    for number in sorted(space.other_forms):
        (rival,) = space.switched(frozenset(), frozenset({number}))
        assert rival == number
        for other in sorted(space.everything):
            flipped = space.switched(frozenset({other}), frozenset({number}))
            same = space.groups[other].nodes == space.groups[number].nodes
            assert flipped == ({number} if same else {number, other})
            assert space.closed(flipped) == flipped


@pytest.mark.parametrize("strategy", ["bayesian", "local_search"])
def test_the_best_forms_are_found(strategy: str) -> None:
    """`python -m benchmarks.search_quality` plays more tables, with many more seeds."""
    played = table("runs", PROFILE)
    best = min(range(len(played.latencies_ms)), key=played.latencies_ms.__getitem__)
    forms = {played.space.groups[number].form for number in state_of(best)}
    assert forms == {Form.WHOLE, Form.DYNAMIC}
    assert near(play(played, range(3), strategy)) == 3


def test_forms_are_found_on_any_machine() -> None:
    found = [
        outcome
        for seed in range(4)
        for outcome in play(synthetic_forms_table(seed, "runs"), [seed])
    ]
    assert near(found) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["bayesian", "local_search"])
@pytest.mark.parametrize("model", ["runs", "products", "readers", "sums"])
def test_95_of_100_searches_end_near_the_best(model: str, strategy: str) -> None:
    assert near(play(table(model, PROFILE), range(SEEDS), strategy)) >= 95
