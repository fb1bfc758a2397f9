"""What a search asks when several workers answer: as many trials at a time, whoever is first."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import pytest
from benchmarks.search_quality import Table, limits_for, synthetic_table
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.search._space import State
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import (
    NOTHING,
    Effort,
    Limits,
    Score,
    SearchTask,
    SteppedStrategy,
    Trial,
)

STRATEGIES = ("bayesian", "local_search")
# Digests of all that was asked, from before there were workers.
ASKED_BY_ONE = {
    ("bayesian", 0): "92d96feeb6fc78f4",
    ("bayesian", 1): "4431cdf9592f3fce",
    ("local_search", 0): "718b16dd46803530",
    ("local_search", 1): "b598d4f0e0d192d3",
}

Order = Callable[[list[Trial]], Iterable[Trial]]


@lru_cache
def chain(seed: int) -> Table:
    return synthetic_table(seed)


@dataclass
class Played:
    """A search that was answered to its end."""

    search: SteppedStrategy
    rounds: list[list[Trial]] = field(default_factory=list)

    @property
    def trials(self) -> list[Trial]:
        return [trial for trials in self.rounds for trial in trials]


def in_order(trials: list[Trial]) -> list[Trial]:
    return trials


def score(table: Table, trial: Trial, state: State) -> Score:
    """What is compared decides the score, and never when."""
    noise = random.Random(repr((sorted(trial.reference), sorted(state), trial.effort)))
    gain = math.log(table.ms(trial.reference) / table.ms(state))
    return Score(gain + noise.gauss(0.0, 0.01), 0.008)


def play(table: Table, name: str, limits: Limits, order: Order = in_order) -> Played:
    """Answer all that a strategy asks, the trials of each round in some order."""
    search = make_strategy(SearchTask(table.space, table.seeds, limits), name)
    assert isinstance(search, SteppedStrategy)
    played = Played(search)
    for trials in search.rounds():
        played.rounds.append(trials)
        assert len(played.rounds) < 1000
        for trial in order(trials):
            search.tell(trial, [score(table, trial, state) for state in trial.candidates])
    return played


def limits(table: Table, workers: int) -> Limits:
    return replace(limits_for(table, "quick"), workers=workers)


def digest(trials: Sequence[Trial]) -> str:
    asked = [
        (sorted(each.reference), list(map(sorted, each.candidates)), each.effort.value, each.stage)
        for each in trials
    ]
    return hashlib.blake2b(repr(asked).encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize(("name", "seed"), ASKED_BY_ONE)
def test_one_worker_is_asked_what_it_was_always_asked(name: str, seed: int) -> None:
    table = chain(seed)
    played = play(table, name, limits(table, 1))
    assert digest(played.trials) == ASKED_BY_ONE[name, seed]
    assert {len(trials) for trials in played.rounds} == {1}


@given(st.sampled_from(STRATEGIES), st.integers(0, 3), st.integers(2, 5), st.randoms())
def test_who_answers_first_decides_nothing(
    name: str, seed: int, workers: int, chance: random.Random
) -> None:
    table = chain(seed)
    first = play(table, name, limits(table, workers))
    other = play(
        table, name, limits(table, workers), lambda trials: chance.sample(trials, len(trials))
    )
    assert other.trials == first.trials
    assert (other.search.best, other.search.gain) == (first.search.best, first.search.gain)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("workers", [2, 3, 4, 8])
def test_trials_of_a_round_are_independent_and_there_is_one_for_each_worker(
    name: str, workers: int
) -> None:
    table = chain(0)
    played = play(table, name, limits(table, workers))
    assert max(map(len, played.rounds)) == workers
    for trials in played.rounds:
        assert len(trials) <= workers
        assert len({trial.reference for trial in trials}) == 1
        states = [state for trial in trials for state in trial.candidates]
        assert len(states) == len(set(states))
        # Nobody waits long for another one.
        sizes = sorted(len(trial.candidates) for trial in trials)
        assert sizes[-1] <= max(1, -(-sum(sizes) // len(sizes)))


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("most", [0, 1, 3, 7, 12])
def test_the_number_of_candidates_is_kept(workers: int, most: int) -> None:
    table = chain(0)
    for name in STRATEGIES:
        played = play(table, name, Limits(benchmarks=most, workers=workers))
        assert sum(len(trial.candidates) for trial in played.trials) <= most


@pytest.mark.parametrize("name", STRATEGIES)
def test_more_workers_find_as_much(name: str) -> None:
    """What is asked in larger batches is known less well before: it must not cost much."""
    losses = {1: 0.0, 4: 0.0}
    for workers in losses:
        for seed in range(4):
            table = chain(seed)
            search = play(table, name, limits(table, workers)).search
            losses[workers] += table.ms(search.best) / table.best_ms - 1.0
    assert losses[4] <= losses[1] + 4 * 0.02


def test_a_strategy_of_another_package_may_ask_for_more_at_once_than_there_are_workers() -> None:
    class ManyAtOnce(SteppedStrategy):
        def steps(self):
            states = [frozenset({n}) for n in range(7)]
            yield [Trial(NOTHING, (state,), Effort.CONFIRM) for state in states]

    table = chain(0)
    search = ManyAtOnce(SearchTask(table.space, {}, Limits(workers=3)))
    sizes = []
    for trials in search.rounds():
        sizes.append(len(trials))
        for trial in trials:
            search.tell(trial, [score(table, trial, state) for state in trial.candidates])
    assert sizes == [3, 3, 1]
