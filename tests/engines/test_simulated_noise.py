"""The simulated noise is what its documentation says, and verdicts on it are right."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from qdqtune.engines._timing import plan_turns, take_turns
from qdqtune.records._measurement import Verdict
from qdqtune.testing.simulated._machine import Machine, Noise

SILENT = Noise(noise=0, drift=0, spikes=0, offset=0)


def logs(noise: Noise, runs: int = 20_000, true_ms: float = 5.0, seed: int = 0) -> np.ndarray:
    samples = Machine(noise, seed).run_noise(b"model").samples_ms(true_ms, runs)
    return np.log(np.array(samples) / true_ms)


def lag_correlation(values: np.ndarray, lag: int = 1) -> float:
    return float(np.corrcoef(values[:-lag], values[lag:])[0, 1])


def test_without_noise_every_sample_is_the_truth():
    assert set(logs(SILENT, 100)) == {0.0}


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_runs_are_an_ar1_sequence(correlation):
    values = logs(replace(SILENT, noise=0.02, correlation=correlation))
    assert np.std(values) == pytest.approx(0.02, rel=0.08)
    assert np.mean(values) == pytest.approx(0.0, abs=0.002)
    assert lag_correlation(values) == pytest.approx(correlation, abs=0.03)
    assert lag_correlation(values, 2) == pytest.approx(correlation**2, abs=0.04)


@pytest.mark.parametrize("true_ms", [1.0, 20.0])
def test_the_machine_drifts_in_virtual_time(true_ms):
    values = logs(replace(SILENT, drift=0.03, drift_s=0.1), true_ms=true_ms)
    assert np.std(values) == pytest.approx(0.03, rel=0.15)
    assert lag_correlation(values) == pytest.approx(math.exp(-true_ms / 100), abs=0.02)


def test_the_drift_is_shared():
    machine = Machine(replace(SILENT, drift=0.05, drift_s=10.0), 0)
    one, other = machine.run_noise(b"one"), machine.run_noise(b"other")
    values = np.log([one.samples_ms(1.0, 1) + other.samples_ms(1.0, 1) for _ in range(5000)])
    assert np.corrcoef(values.T)[0, 1] > 0.99


def test_two_opens_differ_by_their_offsets():
    machine = Machine(replace(SILENT, offset=0.01), 0)
    offsets = [math.log(machine.run_noise(b"model").samples_ms(1.0, 1)[0]) for _ in range(2000)]
    assert np.std(offsets) == pytest.approx(0.01, rel=0.08)
    assert len(set(offsets)) == 2000


def test_spikes_come_as_often_as_said():
    values = logs(replace(SILENT, spikes=0.05, spike_size=0.5))
    assert set(np.round(values, 9)) == {0.0, round(math.log(1.5), 9)}
    assert np.mean(values > 0) == pytest.approx(0.05, abs=0.006)


def test_samples_repeat_with_the_seed_and_the_requests():
    assert np.array_equal(logs(Noise(), 50), logs(Noise(), 50))
    assert not np.array_equal(logs(Noise(), 50), logs(Noise(), 50, seed=1))
    machine = Machine(Noise(), 0)
    machine.run_noise(b"model")
    second = machine.run_noise(b"model").samples_ms(5.0, 50)
    assert not np.array_equal(np.log(np.array(second) / 5.0), logs(Noise(), 50))


def test_time_passes_by_the_samples():
    machine = Machine(Noise(), 0)
    samples = machine.run_noise(b"model").samples_ms(5.0, 50)
    assert machine.clock_s == pytest.approx(sum(samples) / 1000)


@pytest.mark.parametrize(
    "wrong", [{"noise": -0.1}, {"correlation": 1.0}, {"spikes": 1.5}, {"drift": math.nan}]
)
def test_impossible_noise_is_refused(wrong):
    with pytest.raises(ValueError):
        Noise(**wrong)


def verdicts(ratio: float, seeds: int) -> list[Verdict]:
    """What comparisons of two models that differ by a ratio say, for many seeds."""
    found = []
    for seed in range(seeds):
        machine = Machine(Noise(), seed)
        true_ms = (30.0, 30.0 / ratio)
        opened = [machine.run_noise(b"baseline"), machine.run_noise(b"candidate")]
        _, (comparison,) = take_turns(
            lambda model, runs, opened=opened, true_ms=true_ms: opened[model].samples_ms(
                true_ms[model], runs
            ),
            plan_turns(true_ms, budget_s=4.0),
        )
        found.append(comparison.verdict)
    return found


def test_at_most_one_in_a_hundred_comparisons_of_equal_models_says_faster_or_slower():
    found = verdicts(1.0, 2000)
    assert found.count(Verdict.FASTER) <= 20
    assert found.count(Verdict.SLOWER) <= 20


@pytest.mark.parametrize(
    ("ratio", "expected"), [(1.03, Verdict.FASTER), (1 / 1.03, Verdict.SLOWER)]
)
def test_comparisons_find_what_is_there(ratio, expected):
    assert verdicts(ratio, 200).count(expected) >= 190
