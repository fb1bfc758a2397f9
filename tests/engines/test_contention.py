"""Comparisons on a machine that other work keeps busy: on recorded shapes of noise, seeded."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from qdqtune.engines import _worker_main as contention
from qdqtune.engines._timing import BUSY_SHARE, compare_blocks, plan_turns, take_turns
from qdqtune.records._measurement import (
    BenchmarkEntry,
    BenchRecord,
    Comparison,
    EngineInfo,
    Measurement,
)
from qdqtune.report._bench import bench_text

FLOAT_MS, INT8_MS = 0.8, 0.32
INVOCATIONS = 60


class BusyCore:
    """Two models on a core that others take away: a run behind their turn finds cold caches.

    The more weights a model has, the more that costs it. How much of the caches others take moves
    within a measurement, and by more from one measurement to the next, as was seen on a shared
    machine with five busy processes.
    """

    def __init__(self, seed: int, preempted: float) -> None:
        self._random = np.random.default_rng(seed)
        self._preempted = preempted
        self._level = self._random.uniform(0.2, 1.0)
        self._cold_ms = (0.9, 0.1)

    def time_block(self, model: int, runs: int) -> list[float]:
        random = self._random
        self._level = min(1.2, max(0.1, self._level + random.normal(0.0, 0.02)))
        cold = random.random(runs) < self._preempted
        after = np.concatenate(([0.0], cold[:-1]))  # and the run behind it is not quite warm
        slowed = self._level * self._cold_ms[model] * (cold + 0.5 * after)
        noise = random.gamma(2.0, 0.03, runs) * self._level
        base = (FLOAT_MS, INT8_MS)[model]
        return (base * (1.0 + noise) + slowed).tolist()

    def compare(self, share: float) -> tuple[Comparison, Comparison]:
        """The comparison at this share of waiting, and the one of the same blocks at none."""
        blocks, (found,) = take_turns(
            self.time_block, plan_turns([1.2, 0.35], 3.0), contention=lambda: share
        )
        return found, compare_blocks(*blocks)


def coverage(comparisons: list[Comparison]) -> float:
    middle = statistics.median(each.ratio for each in comparisons)
    return statistics.fmean(each.low <= middle <= each.high for each in comparisons)


def width(comparison: Comparison) -> float:
    return (comparison.high - comparison.low) / comparison.ratio


@pytest.mark.parametrize(("share", "preempted"), [(0.3, 0.15), (0.48, 0.3), (0.6, 0.6)])
def test_intervals_on_a_busy_core_hold(share: float, preempted: float) -> None:
    pairs = [BusyCore(seed, preempted).compare(share) for seed in range(INVOCATIONS)]
    busy, as_if_quiet = [busy for busy, _ in pairs], [quiet for _, quiet in pairs]
    assert coverage(as_if_quiet) < 0.7  # neighbouring blocks do not show how far the ratio moves
    assert coverage(busy) >= 0.95
    assert max(map(width, busy)) <= 0.25
    assert statistics.median(each.ratio for each in busy) == pytest.approx(
        FLOAT_MS / INT8_MS, rel=0.05
    )


def test_a_busy_comparison_is_not_ended_early_and_says_how_busy_it_was() -> None:
    core, plan = BusyCore(0, 0.3), plan_turns([1.2, 0.35], 3.0)
    done: list[int] = []
    _, (found,) = take_turns(
        core.time_block, plan, lambda rounds, _: done.append(rounds), contention=lambda: 0.5
    )
    assert done[-1] == plan.rounds
    assert found.contention == 0.5
    assert found.to_dict()["contention"] == 0.5
    assert Comparison.from_dict(found.to_dict()) == found


def test_a_quiet_machine_changes_nothing() -> None:
    plan = plan_turns([1.2, 0.35], 3.0)
    (with_it,), (without,) = (
        take_turns(BusyCore(0, 0.01).time_block, plan, **how)[1]
        for how in ({"contention": lambda: BUSY_SHARE / 2.0}, {})
    )
    assert with_it == without
    assert with_it.contention == 0.0


def test_the_interval_widens_with_the_waiting_and_with_what_the_segments_show() -> None:
    widths = [width(BusyCore(1, 0.1).compare(share)[0]) for share in (0.12, 0.25, 0.5)]
    assert widths == sorted(widths)
    assert widths[0] < 0.1

    def restless(model: int, runs: int) -> list[float]:
        restless.calls += 1  # type: ignore[attr-defined]
        level = 2.0 if model == 0 and restless.calls > 200 else 1.0  # type: ignore[attr-defined]
        return [level] * runs

    restless.calls = 0  # type: ignore[attr-defined]
    _, (found,) = take_turns(restless, plan_turns([1.0, 1.0], 5.0), contention=lambda: 0.5)
    assert width(found) > 0.25


def test_bench_says_that_the_machine_is_busy() -> None:
    timed, engine = Measurement(((1.0,),)), EngineInfo("onnxruntime", "1", "cpu", "avx2", 1)

    def text(contention_share: float) -> str:
        comparison = Comparison(2.0, 1.8, 2.2, 0.96, 90, 0.01, contention_share)
        entries = (BenchmarkEntry("a", timed), BenchmarkEntry("b", timed, comparison))
        return bench_text(BenchRecord(engine, entries, {}, 0))

    assert "the engine waited for a core 47 % of the time" in text(0.47)
    assert "threads waited longer for cores than the runs took" in text(1.0)
    assert "busy" not in text(0.0)


def test_the_share_is_capped_where_many_threads_wait() -> None:
    found, _ = BusyCore(0, 0.3).compare(1.7)
    assert found.contention == 1.0
    assert math.isfinite(found.high)


def test_the_scheduler_s_account_is_summed_over_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for thread, text in (("1", "10 2000000000 3"), ("2", "10 500000000 3")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    monkeypatch.setattr(contention, "_THREADS", tmp_path)
    assert contention.waited_for_cpu_s() == 2.5


@pytest.mark.parametrize("text", ["", "12", "no numbers here"])
def test_an_unknown_account_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text(text)
    monkeypatch.setattr(contention, "_THREADS", tmp_path)
    assert contention.waited_for_cpu_s() == 0.0
    monkeypatch.setattr(contention, "_THREADS", tmp_path / "nowhere")
    assert contention.waited_for_cpu_s() == 0.0
