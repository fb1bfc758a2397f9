"""Promise: sessions keep their feeds, don't disturb each other, and leave nothing behind."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.engines.isolated import OpenModel
from qdqtune.testing.bench import Bench
from qdqtune.testing.models import Array, Arrays, model_of, tower, tower_feeds

_FEW_ROWS, _MANY_ROWS = 8, 2048
# On a large GPU, a few thousand rows take no longer than eight.
_VERY_MANY_ROWS = 1 << 19
_OPENS = 20
_WARM_UP_OPENS = 3
# Weights of 2 MiB: engines that leak sessions grow by 45 MiB and more.
_WIDTH = 768
_MOST_GROWTH_MIB = 25.0


class KeepsSessionsApart:
    """Sessions and their feeds."""

    def test_a_second_feed_replaces_the_first(self, bench: Bench) -> None:
        """Timed runs use the last feeds: larger ones take longer, smaller ones less again."""
        bench.needs_runs()
        with bench.opened(_open_tower(bench), feeds=tower_feeds(_FEW_ROWS)) as model:
            for rows in (_MANY_ROWS, _VERY_MANY_ROWS):
                few = _median_ms(bench, model)
                bench.worker.feed(model, tower_feeds(rows))
                many = _median_ms(bench, model)
                bench.worker.feed(model, tower_feeds(_FEW_ROWS))
                again = _median_ms(bench, model)
                if many > 2.0 * max(few, again):
                    return
        raise AssertionError(
            f"{_FEW_ROWS}, {rows} and again {_FEW_ROWS} rows take {few:.4g}, {many:.4g} and "
            f"{again:.4g} ms. `set_feeds` must replace what was kept before"
        )

    def test_running_leaves_the_timed_feeds_alone(self, bench: Bench) -> None:
        """`run` takes its own inputs; later timed runs still use those of `set_feeds`."""
        bench.needs_runs()
        with bench.opened(_open_tower(bench), feeds=tower_feeds(_MANY_ROWS)) as model:
            before = _median_ms(bench, model)
            outputs = bench.worker.run(model, tower_feeds(_FEW_ROWS))
            after = _median_ms(bench, model)
        assert outputs["y"].shape[0] == _FEW_ROWS, "`run` must use the feeds that it is given"
        assert after > before / 4.0, (
            f"timed runs on {_MANY_ROWS} rows took {before:.4g} ms, and after a `run` on "
            f"{_FEW_ROWS} rows only {after:.4g}: `run` has replaced the feeds of timed runs"
        )

    def test_a_fed_model_runs_as_well(self, bench: Bench) -> None:
        """A model that is timed also runs and tells its layers, on the same shapes as before."""
        bench.needs_runs()
        feeds = tower_feeds(_FEW_ROWS)
        with bench.opened(_open_tower(bench), feeds=feeds) as model:
            bench.worker.time(model, 1)
            assert bench.worker.run(model, feeds)["y"].shape[0] == _FEW_ROWS
            if bench.engine.layers:
                assert bench.worker.layers(model, 1), "`layer_times` returned nothing"
            assert len(bench.worker.time(model, 2)) == 2

    def test_feeds_are_kept(self, bench: Bench) -> None:
        """What was fed is the session's own: the caller's arrays may change or go."""
        bench.needs_runs()
        proto = model_of(
            "g (int64[4096] ids) => (float[4096, 8] y) { y = Gather(table, ids) }",
            table=np.ones((5, 8), np.float32),
        )
        feeds: dict[str, Array] = {"ids": np.full(4096, 4, np.int64)}
        path = bench.write("gather", proto)
        with bench.opened(path, feeds=feeds) as model:
            feeds["ids"][:] = 10**9  # whoever reads this reads far outside of the table
            with bench.opened(path, feeds={"ids": np.zeros(4096, np.int64)}) as other:
                for _ in range(3):
                    bench.worker.run(other, {"ids": np.zeros(4096, np.int64)})
                assert min(bench.worker.time(model, 3)) > 0

    def test_timing_needs_feeds(self, bench: Bench) -> None:
        """A model without feeds can't be timed, and says so."""
        with bench.opened(bench.tower()) as model:
            bench.refusal(lambda: bench.worker.time(model, 1), "timed runs before any `set_feeds`")

    def test_sessions_do_not_mix(self, bench: Bench) -> None:
        """Two models open at once compute each its own; closing one leaves the other."""
        bench.needs_runs()
        paths = [bench.write(f"times{f}", _times(f)) for f in (2, 3)]
        feeds = {"x": np.arange(4, dtype=np.float32)}
        two, three = (bench.worker.open(path) for path in paths)
        try:
            for model, factor in ((two, 2), (three, 3), (two, 2)):
                _check_times(bench, model, feeds, factor)
            bench.worker.feed(three, feeds)
            bench.worker.release(two)
            _check_times(bench, three, feeds, 3)
            assert len(bench.worker.time(three, 2)) == 2
        finally:
            bench.worker.release(three)

    def test_closing_gives_memory_back(self, bench: Bench) -> None:
        """Sessions opened and closed one after the other don't fill the memory."""
        if sys.platform != "linux":
            pytest.skip("only Linux tells the memory of another process in a file")
        path = bench.write("wide tower", tower(1, width=_WIDTH))
        feeds = {"x": np.zeros((64, _WIDTH), np.float32)}
        before = 0.0
        for number in range(_WARM_UP_OPENS + _OPENS):
            if number == _WARM_UP_OPENS:
                before = _memory_mib(bench)
            with bench.opened(path, feeds=feeds) as model:
                if bench.engine.runs:
                    bench.worker.time(model, 1)
        growth = _memory_mib(bench) - before
        assert growth < _MOST_GROWTH_MIB, (
            f"{_OPENS} sessions with 2 MiB of weights each, all closed, left {growth:.0f} MiB "
            "behind. `close` must drop everything that refers to the engine's objects"
        )


def _open_tower(bench: Bench) -> Path:
    return bench.write("open_tower", tower(2, rows="n"))


def _median_ms(bench: Bench, model: OpenModel) -> float:
    return statistics.median(bench.worker.time(model, 4)[1:])


def _times(factor: int) -> onnx.ModelProto:
    text = "g (float[4] x) => (float[4] y) { y = Mul(x, w) }"
    return model_of(text, w=np.full(4, factor, np.float32))


def _check_times(bench: Bench, model: OpenModel, feeds: Arrays, factor: int) -> None:
    found = bench.worker.run(model, feeds)["y"]
    assert np.allclose(found, feeds["x"] * factor, rtol=1e-2), (
        f"x times {factor} is {found} for x = {feeds['x']}: another session's weights?"
    )


def _memory_mib(bench: Bench) -> float:
    pages = Path(f"/proc/{bench.worker.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20
