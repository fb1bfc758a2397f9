"""What is handed over is faster than the baseline, or it is the baseline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtune.engines.simulated.noise import Machine, Noise
from qdqtune.engines.timing import plan_turns, take_turns
from qdqtune.records.measurement import Comparison
from qdqtune.records.tuning import DEFAULT_THRESHOLD, TuneResult
from qdqtune.workflows.tuning.finish import why_not_shipped
from tests.promises.models import two_convs

SEEDS = 1000
ALPHA = 0.02
BASELINE_MS = 5.0

USUAL = Noise()
LOUD = Noise(noise=0.05, correlation=0.6, drift=0.08, drift_s=0.3, spikes=0.05, spike_size=2.0)
# Nothing but where memory came to lie: intervals are narrow, and around the wrong number.
LYING = Noise(noise=0.001, drift=0.0, spikes=0.0, offset=0.002)


def final_comparison(noise: Noise, candidate_ms: float, seed: int, rounds: int = 30) -> Comparison:
    """The last comparison of a tune, as `time_final` makes it, on a simulated machine."""
    machine = Machine(noise, seed)
    latencies_ms = [BASELINE_MS, candidate_ms]
    opens = [machine.run_noise(name) for name in (b"baseline", b"candidate")]
    _, (comparison,) = take_turns(
        lambda model, runs: opens[model].samples_ms(latencies_ms[model], runs),
        plan_turns(latencies_ms, budget_s=1.0, rounds=rounds),
    )
    return comparison


def shipped_share(noise: Noise, candidate_ms: float, threshold: float, seeds: int = SEEDS) -> float:
    shipped = sum(
        not why_not_shipped(final_comparison(noise, candidate_ms, seed), threshold)
        for seed in range(seeds)
    )
    return shipped / seeds


@pytest.mark.parametrize("slowdown", [1.0, 1.01], ids=["as_fast", "slower"])
@pytest.mark.parametrize("noise", [USUAL, LOUD, LYING], ids=["usual", "loud", "lying"])
def test_what_is_not_faster_is_shipped_no_more_often_than_alpha(
    noise: Noise, slowdown: float
) -> None:
    # With a threshold of 1, nothing but the statistics stands between noise and the user.
    assert shipped_share(noise, BASELINE_MS * slowdown, threshold=1.0) <= ALPHA


def test_what_is_faster_is_shipped() -> None:
    assert shipped_share(USUAL, BASELINE_MS / 1.05, DEFAULT_THRESHOLD, seeds=100) > 0.9


def test_what_gains_less_than_the_threshold_is_not_shipped() -> None:
    assert shipped_share(LYING, BASELINE_MS / 1.05, threshold=1.1, seeds=100) == 0.0


def test_a_tune_that_is_misled_gives_the_baseline_back(
    faulty_tune: Callable[..., TuneResult], tmp_path: Path
) -> None:
    """The stand-in flatters every candidate, but takes as long for the final file as for float."""
    result = faulty_tune(
        two_convs(),
        fault="flattery",
        poisoned="every",
        noise={"seed": "1"},
        performance_threshold=0.9,
    )
    assert max(result.summary.seeds.values()) > 1.2
    assert result.summary.kept_float
    assert "not faster for certain" in result.summary.reason
    assert result.summary.final_ms == result.summary.baseline_ms
    assert result.model.read_bytes() == (tmp_path / "model.onnx").read_bytes()
