"""Promise: the times are what runs take, in milliseconds, and can be compared."""

from __future__ import annotations

import time

import pytest

from qdqtune.engines.comparison import compare_files
from qdqtune.records.measurement import Verdict
from qdqtune.testing.bench import Bench
from qdqtune.testing.models import TOWER_LAYERS, tower_feeds

_TIMES_THE_WORK = 8
_RUNS = 20
# Samples may leave out much: time of other processes, copies to a device. But not nearly all.
_LEAST_SHARE = 0.05
_MOST_SHARE = 1.1
_AA_LEAST_SAME, _AA_MOST_DIFFERENT = 2, 3
_AA_BUDGET_S = 0.4


class TimesModels:
    """Timing: amounts, units and comparisons."""

    @pytest.mark.parametrize("runs", [1, 7])
    def test_as_many_samples_as_asked(self, bench: Bench, runs: int) -> None:
        """`time_runs(n)` returns n positive numbers."""
        bench.needs_runs()
        with bench.opened(bench.tower(), feeds=tower_feeds()) as model:
            samples = bench.worker.time(model, runs)
        assert len(samples) == runs, f"{len(samples)} samples were returned of {runs} runs"
        assert all(0 < sample < float("inf") for sample in samples), (
            f"samples are positive numbers, not {samples}. A clock that is too coarse for short "
            "runs shows zeros"
        )

    def test_a_measurement_is_complete(self, bench: Bench) -> None:
        """A measured model has samples, and the seconds that building and timing took."""
        bench.needs_runs()
        measured = bench.worker.measure(bench.tower(), tower_feeds(), blocks=2, runs=5, drop=1)
        assert measured.ok, f"a plain model could not be measured: {measured.error}"
        assert [len(block) for block in measured.blocks_ms] == [5, 5]
        assert measured.build_s > 0, (
            "opening took no time on the engine's clock: an engine that makes times up must let "
            "its `clock_s` go on while it builds"
        )
        assert measured.timing_s > 0, "timed runs took no time on the engine's clock"

    def test_samples_are_milliseconds(self, bench: Bench) -> None:
        """The samples of a request add up to about the time that the request took."""
        bench.needs_runs()
        with bench.opened(bench.tower(), feeds=tower_feeds()) as model:
            bench.worker.time(model, 2)
            before_s, start = bench.worker.timing_s, time.monotonic()
            samples = bench.worker.time(model, _RUNS)
            waited_s, spent_s = time.monotonic() - start, bench.worker.timing_s - before_s
        assert spent_s > 0, "timed runs took no time on the engine's clock"
        share = sum(samples) / 1000.0 / spent_s
        least = 0.0 if bench.engine.program else _LEAST_SHARE
        assert least <= share <= _MOST_SHARE, (
            f"{_RUNS} runs took {spent_s * 1000:.3g} ms on the engine's clock, their samples add "
            f"up to {sum(samples):.3g}. If one is a thousandfold of the other, `time_runs` returns "
            "seconds or microseconds; if far too little, it doesn't wait until a run is over"
        )
        if bench.engine.measures:
            assert spent_s <= waited_s, (
                f"the engine says that runs took {spent_s:.3g} s, but it answered after "
                f"{waited_s:.3g}. An engine that has a `clock_s` of its own measures nothing"
            )

    def test_more_work_takes_longer(self, bench: Bench) -> None:
        """A model with eight times the products is clearly slower."""
        bench.needs_runs()
        fast, slow = (
            bench.worker.measure(path, tower_feeds(), blocks=3, runs=4)
            for path in (bench.tower(), bench.tower(TOWER_LAYERS * _TIMES_THE_WORK))
        )
        assert fast.ok, fast.error
        assert slow.ok, slow.error
        assert slow.latency_ms > 2.0 * fast.latency_ms, (
            f"{_TIMES_THE_WORK} times the work takes {slow.latency_ms:.4g} ms instead of "
            f"{fast.latency_ms:.4g}. Is the run over when the clock is read? Is there a cache of "
            "results?"
        )

    def test_a_model_is_as_fast_as_itself(self, bench: Bench) -> None:
        """One file against itself is called the same; noise may say otherwise now and then."""
        bench.needs_runs()
        path, feeds = bench.tower(), tower_feeds()
        same = 0
        different: list[float] = []
        while len(different) < _AA_MOST_DIFFERENT:
            measured, (compared,) = compare_files(
                bench.worker, [path, path], feeds, budget_s=_AA_BUDGET_S
            )
            assert compared is not None, [each.error for each in measured]
            if compared.verdict is not Verdict.SAME:
                different.append(compared.ratio)
                continue
            same += 1
            if same == _AA_LEAST_SAME:
                return
        raise AssertionError(
            f"one file was found to differ from itself in speed, by {_ratios(different)}. Does a "
            "session do something once, in its first runs? Do threads of one session spin on "
            "while another runs? Or the machine was too busy to measure anything"
        )


def _ratios(found: list[float]) -> str:
    return ", ".join(f"{ratio:.3f}" for ratio in found)
