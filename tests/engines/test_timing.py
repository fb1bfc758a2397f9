"""Statistics of timing on synthetic noise of which the truth is known."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.engines._timing import (
    BlockShape,
    compare_blocks,
    correlation_time,
    median_interval,
    plan_turns,
    scores,
    take_turns,
)
from qdqtune.records._measurement import Verdict


class NoisyMachine:
    """Runs take their true time, slowed by what a shared machine does over its timeline.

    Slow waves (AR(1)), a drift over the whole comparison, and runs hit by something else.
    """

    def __init__(self, latencies_ms, seed, *, waves=0.03, memory=0.9, drift=0.0, spikes=0.0):
        random = np.random.default_rng(seed)
        steps = 600
        shocks = random.normal(0.0, waves * math.sqrt(1 - memory**2), steps)
        noise = np.empty(steps)
        level = random.normal(0.0, waves)
        for step, shock in enumerate(shocks):
            level = memory * level + shock
            noise[step] = level
        noise += random.normal(0.0, 0.005, steps) + np.linspace(0.0, drift, steps)
        noise += random.exponential(0.4, steps) * (random.random(steps) < spikes)
        self._factors = itertools.cycle(np.exp(noise).tolist())
        self._latencies_ms = latencies_ms

    def time_block(self, model, runs):
        latency_ms = self._latencies_ms[model]
        return [latency_ms * factor for factor in itertools.islice(self._factors, runs)]

    def verdicts(self, budget_s=7.0):
        _, comparisons = take_turns(self.time_block, plan_turns(self._latencies_ms, budget_s))
        return [comparison.verdict for comparison in comparisons]


NOISES = {
    "quiet": {"waves": 0.005},
    "waves": {"waves": 0.03},
    "long waves": {"waves": 0.1, "memory": 0.99},
    "drift": {"waves": 0.02, "drift": 0.5},
    "spikes": {"waves": 0.02, "spikes": 0.1},
}
SEEDS = 1000


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_the_same_is_hardly_ever_called_different(noise):
    called = [NoisyMachine([40.0, 40.0], seed, **noise).verdicts()[0] for seed in range(SEEDS)]
    assert sum(verdict.differs for verdict in called) <= 0.05 * SEEDS


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_three_percent_are_seen_and_never_reversed(noise):
    slower = [NoisyMachine([40.0, 41.2], seed, **noise).verdicts()[0] for seed in range(SEEDS)]
    faster = [NoisyMachine([41.2, 40.0], seed, **noise).verdicts()[0] for seed in range(SEEDS)]
    assert slower.count(Verdict.SLOWER) >= 0.9 * SEEDS
    assert faster.count(Verdict.FASTER) >= 0.9 * SEEDS
    assert Verdict.FASTER not in slower
    assert Verdict.SLOWER not in faster


def test_many_candidates_at_once():
    truth = [10.0, 10.0, 9.0, 11.0, 10.0]
    wrong = 0
    for seed in range(40):
        verdicts = NoisyMachine(truth, seed, drift=0.3).verdicts()
        assert verdicts[1:3] == [Verdict.FASTER, Verdict.SLOWER]
        wrong += sum(verdicts[i].differs for i in (0, 3))
    assert wrong <= 4


def test_clear_differences_stop_early():
    rounds = []
    machine = NoisyMachine([10.0, 5.0], 0)
    what = plan_turns([10.0, 5.0], 7.0)
    _, (comparison,) = take_turns(machine.time_block, what, lambda done, _: rounds.append(done))
    assert comparison.ratio == pytest.approx(2.0, rel=0.02)
    assert rounds[-1] <= what.rounds // 4 + 1
    assert comparison.confidence > 0.999


def test_turns_surround_every_candidate_with_the_baseline():
    calls = []

    def time_block(model, runs):
        calls.append(model)
        return [1.0] * runs

    blocks, _ = take_turns(time_block, plan_turns([40.0, 40.0, 40.0], 3.0))
    assert calls[:7] == [0, 1, 2, 0, 2, 1, 0]
    assert len(blocks[0]) == len(blocks[1]) + 1 == len(blocks[2]) + 1


@pytest.mark.parametrize("latency_ms", [0.05, 0.3, 1.4, 6.0, 12.0, 40.0, 300.0])
def test_the_plan_keeps_to_its_time(latency_ms):
    what = plan_turns([latency_ms, latency_ms], 7.0)
    spent_ms = (2 * what.rounds + 1) * what.shapes[0].runs * latency_ms
    assert spent_ms <= 7000.0 or what.rounds == 8
    assert BlockShape.of(latency_ms).block_ms >= 8.0
    assert (BlockShape.of(latency_ms).drop > 0) is (latency_ms < 20.0)


def test_a_linear_drift_cancels_exactly():
    clock = iter(range(10_000))

    def time_block(model, runs):
        return [math.exp(0.001 * next(clock)) for _ in range(runs)]

    blocks, (comparison,) = take_turns(time_block, plan_turns([40.0, 40.0], 7.0))
    assert np.mean(scores(blocks[0], blocks[1])) == pytest.approx(0.0, abs=1e-9)
    assert comparison.verdict is Verdict.SAME


def test_two_equal_models_without_noise_are_the_same():
    comparison = compare_blocks([(1.0, 1.0)] * 21, [(1.0, 1.0)] * 20)
    assert (comparison.ratio, comparison.low, comparison.high) == (1.0, 1.0, 1.0)
    assert comparison.verdict is Verdict.SAME


def test_too_few_pairs_decide_nothing():
    comparison = compare_blocks([(2.0, 2.0)] * 3, [(1.0, 1.0)] * 2)
    assert comparison.pairs == 2
    assert comparison.verdict is Verdict.UNDECIDED


@pytest.mark.parametrize(
    ("count", "confidence", "rank"),
    [(6, 0.95, 1), (8, 0.95, 1), (9, 0.95, 2), (15, 0.95, 4), (20, 0.95, 6), (25, 0.99, 6)],
)
def test_the_interval_has_the_ranks_of_the_printed_tables(count, confidence, rank):
    assert median_interval(range(count), confidence) == (rank - 1, count - rank)


@pytest.mark.parametrize(("memory", "at_least", "at_most"), [(0.0, 1.0, 1.4), (0.8, 3.0, 9.0)])
def test_values_that_follow_their_neighbours_count_less(memory, at_least, at_most):
    found = []
    covered = {1.0: 0, None: 0}
    for seed in range(200):
        shocks = np.random.default_rng(seed).normal(0.0, 1.0, 200).tolist()
        values = list(itertools.accumulate(shocks, lambda level, shock: memory * level + shock))
        found.append(correlation_time(values))
        for correlation in covered:
            low, high = median_interval(values, 0.96, correlation or found[-1])
            covered[correlation] += low <= 0.0 <= high
    assert at_least <= statistics.fmean(found) <= at_most
    assert covered[None] >= 0.85 * 200
    assert (covered[1.0] < 0.7 * 200) is (memory > 0.0)


def test_too_few_values_bound_nothing():
    assert median_interval([1.0] * 5, 0.95) == (-math.inf, math.inf)
    assert median_interval([], 0.95) == (-math.inf, math.inf)


def test_the_interval_covers_as_often_as_it_says():
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        low, high = median_interval((random.standard_t(2, 40) + 0.7).tolist(), 0.9)
        covered += low <= 0.7 <= high
    assert covered / 2000 >= 0.89


@given(st.lists(st.floats(-1, 1), min_size=8, max_size=40), st.floats(-1, 1))
def test_interval_properties(values, shift):
    low, high = median_interval(values, 0.95)
    assert low <= statistics.median(values) <= high
    wide_low, wide_high = median_interval(values, 0.99)
    assert wide_low <= low
    assert wide_high >= high
    moved = median_interval([value + shift for value in values], 0.95)
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-9)
    assert median_interval([-value for value in values], 0.95) == (-high, -low)
