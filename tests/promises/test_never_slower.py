"""What is handed over is faster than the baseline, or it is the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.trust import simulated_final

from qdqtune.config import DEFAULT_THRESHOLD
from qdqtune.engines._comparison import FEWEST_OPENINGS, MOST_OPENINGS
from qdqtune.records._measurement import Verdict
from qdqtune.records._tuning import TuneResult
from qdqtune.testing.simulated._machine import Noise
from qdqtune.workflows.tuning._final_check import why_not_shipped
from tests.promises.models import two_convs

ALL_SEEDS = 1000
SEEDS = pytest.mark.parametrize(
    "seeds", [100, pytest.param(ALL_SEEDS, marks=pytest.mark.slow)], ids="{}_seeds".format
)
ALPHA = 0.02

USUAL = Noise()
LOUD = Noise(noise=0.05, correlation=0.6, drift=0.08, drift_s=0.3, spikes=0.05, spike_size=2.0)
# Nothing but where memory came to lie: intervals are narrow, and around the wrong number.
LYING = Noise(noise=0.001, drift=0.0, spikes=0.0, offset=0.002)
OPENINGS_DIFFER = Noise(offset=0.02)


def shipped_share(noise: Noise, speedup: float, threshold: float, seeds: int) -> float:
    shipped = sum(
        not why_not_shipped(simulated_final(noise, speedup, seed, MOST_OPENINGS), threshold)
        for seed in range(seeds)
    )
    return shipped / seeds


@SEEDS
@pytest.mark.parametrize("slowdown", [1.0, 1.01], ids=["as_fast", "slower"])
@pytest.mark.parametrize("noise", [USUAL, LOUD, LYING], ids=["usual", "loud", "lying"])
def test_what_is_not_faster_is_shipped_no_more_often_than_alpha(
    noise: Noise, slowdown: float, seeds: int
) -> None:
    # With a threshold of 1, nothing but the statistics stands between noise and the user.
    assert shipped_share(noise, 1.0 / slowdown, threshold=1.0, seeds=seeds) <= ALPHA


def test_what_is_faster_is_shipped() -> None:
    assert shipped_share(USUAL, 1.05, DEFAULT_THRESHOLD, seeds=100) > 0.9


@SEEDS
@pytest.mark.parametrize("openings", [FEWEST_OPENINGS, MOST_OPENINGS])
def test_what_differs_by_opening_alone_is_shipped_once_in_a_hundred_times_at_most(
    openings: int, seeds: int
) -> None:
    shipped = [
        not why_not_shipped(simulated_final(OPENINGS_DIFFER, 1.0, seed, openings), threshold=1.0)
        for seed in range(seeds)
    ]
    assert sum(shipped) <= 0.01 * seeds


@pytest.mark.parametrize("openings", [FEWEST_OPENINGS, MOST_OPENINGS])
@pytest.mark.parametrize("offset", [0.02, pytest.param(0.15, marks=pytest.mark.slow)])
def test_the_interval_holds_the_truth_however_much_openings_differ(
    offset: float, openings: int
) -> None:
    true, noise = 1.137, replace(OPENINGS_DIFFER, offset=offset)
    holds = 0
    for seed in range(400):
        found = simulated_final(noise, true, seed, openings)
        holds += found.low <= true <= found.high
    assert holds >= 0.97 * 400


def test_where_openings_hardly_differ_small_gains_are_not_lost() -> None:
    assert shipped_share(USUAL, 1.03, DEFAULT_THRESHOLD, seeds=100) > 0.9


def test_where_files_are_opened_once_a_small_gain_proves_nothing() -> None:
    """There was no time to open them again: how much that moves the ratio is not known."""
    small = [simulated_final(USUAL, 1.02, seed, 1) for seed in range(50)]
    large = [simulated_final(USUAL, 1.15, seed, 1) for seed in range(50)]
    assert not any(found.verdict is Verdict.FASTER for found in small)
    assert all(found.verdict is Verdict.FASTER for found in large)


def test_what_gains_less_than_the_threshold_is_not_shipped() -> None:
    assert shipped_share(LYING, 1.05, threshold=1.1, seeds=100) == 0.0


def test_a_tune_that_is_misled_gives_the_baseline_back(
    faulty_tune: Callable[..., TuneResult], tmp_path: Path
) -> None:
    """The stand-in flatters every candidate, but takes as long for the final file as for float."""
    result = faulty_tune(
        two_convs(),
        fault="flattery",
        poisoned="every",
        noise={"seed": "1"},
        performance_threshold=1.0,
    )
    assert max(result.summary.seeds.values()) > 1.2
    assert result.summary.kept_float
    assert "not significantly faster" in result.summary.reason
    assert result.summary.final_ms == result.summary.baseline_ms
    assert result.model.read_bytes() == (tmp_path / "model.onnx").read_bytes()
