"""Promise: invalid requests are refused, a failure costs one request, sessions are separate."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest

from qdqtune.engines._worker import FailureKind, OpenModel, WorkerFailure
from qdqtune.testing._bench import Array, Arrays, Bench, model_of, tower, tower_feeds

_TEXT = np.array([b"a", b"b", b"c", b"d"], object)
_NOBODY = '<ir_version: 9, opset_import: ["": 19, "nobody": 1]>'
_GOOD = tower_feeds()
BAD_FEEDS: dict[str, Arrays] = {
    "a missing input": {},
    "an unknown input": _GOOD | {"another": np.zeros(1, np.float32)},
    "an input of another type": {"x": _GOOD["x"].astype(np.float64)},
    "an input of another rank": {"x": _GOOD["x"][None]},
    "an input of another size": {"x": _GOOD["x"][:, :7]},
}
"""Invalid feeds, by their fault."""
_SOON_S = 0.1
_NO_TIME_S = 1e-4
_GONE_WITHIN_S = 5.0
_FEW_ROWS, _MANY_ROWS = 8, 2048
# On a large GPU, a few thousand rows take no longer than eight.
_VERY_MANY_ROWS = 1 << 19
_OPENS = 20
_WARM_UP_OPENS = 3
# Weights of 2 MiB: engines that leak sessions grow by 45 MiB and more.
_WIDTH = 768
_MOST_GROWTH_MIB = 25.0


def _written(
    body: str, size: int = 4, header: str = "", **constants: Array
) -> Callable[[Path], object]:
    text = f"{header}g (float[4] x) => (float[{size}] y) {{ y = {body} }}"
    return lambda path: onnx.save(model_of(text, **constants), path)


def _missing_weights(path: Path) -> None:
    model = _times(2)
    weights = path.with_suffix(".gone")
    onnx.save(model, path, save_as_external_data=True, location=weights.name, size_threshold=0)
    weights.unlink()


BAD_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "garbage": (lambda path: path.write_bytes(bytes(range(255, 0, -1)) * 4), ""),
    "an empty file": (Path.touch, ""),
    "a missing file": (lambda path: path.unlink(missing_ok=True), ""),
    "a folder": (lambda path: path.mkdir(exist_ok=True), ""),
    "an unknown op": (_written("Frobnicate(x)"), "Frobnicate"),
    "an unknown domain": (_written("nobody.Frobnicate(x)", header=_NOBODY), "Frobnicate"),
    "an op that its opset lacks": (_written("Upsample<scales=[2.0]>(x)", 8), "Upsample"),
    "without an opset": (_written("Relu(x)", header="<ir_version: 9>"), "Relu"),
    "a type error": (_written("Add(x, s)", s=_TEXT), "Add"),
    "shapes that do not fit": (_written("MatMul(x, w)", w=np.ones((5, 4), np.float32)), "MatMul"),
    "missing external data": (_missing_weights, ".gone"),
}
"""By fault: how to write the model, and what the error may name instead of the file."""


class RefusesNonsense:
    """Bad files and bad feeds."""

    @pytest.mark.parametrize("fault", BAD_MODELS)
    def test_bad_models_are_refused(self, bench: Bench, fault: str) -> None:
        """An invalid model file causes an error that names the file or the op, never a crash."""
        write, op = BAD_MODELS[fault]
        path = bench.folder / f"bad {fault}.onnx"
        write(path)
        failure = bench.refusal(lambda: _use(bench, path), f"the model: {fault}")
        named = [path.name, *filter(None, [op])]
        assert any(name in str(failure) for name in named), (
            f"the model: {fault}: the error should name {' or '.join(named)}. It is: {failure}"
        )

    @pytest.mark.parametrize("fault", BAD_FEEDS)
    def test_bad_feeds_are_refused_when_timing(self, bench: Bench, fault: str) -> None:
        """Feeds that don't fit the model are an error in `set_feeds`, or in the first timed run."""
        with bench.opened(bench.tower()) as model:

            def request() -> None:
                bench.worker.feed(model, BAD_FEEDS[fault])
                if bench.engine.runs:
                    bench.worker.time(model, 1)

            bench.refusal(request, f"fed {fault}")

    @pytest.mark.parametrize("fault", BAD_FEEDS)
    def test_bad_feeds_are_refused_when_running(self, bench: Bench, fault: str) -> None:
        """Feeds that don't fit the model are an error in `run`."""
        bench.needs_runs()
        with bench.opened(bench.tower()) as model:
            feeds = BAD_FEEDS[fault]
            bench.refusal(lambda: bench.worker.run(model, feeds), f"run on {fault}")


def _use(bench: Bench, path: Path) -> None:
    """Open a model and run it if possible: a simulated engine need not inspect it before that."""
    feeds: Arrays = {"x": np.zeros(4, np.float32)}
    with bench.opened(path, feeds=feeds) as model:
        if bench.engine.runs and bench.engine.measures:
            bench.worker.time(model, 1)
        elif bench.engine.runs:
            bench.worker.run(model, feeds)


class SurvivesFailures:
    """The end of the engine's process, in every way."""

    def test_a_hang_is_stopped(self, bench: Bench) -> None:
        """A request past its limit is a TIMEOUT; its processes end, and the next request works."""
        path = bench.tower(32)
        with bench.opened(bench.tower()):
            processes = _family(bench)
            processes[0].suspend()  # so that it can't answer in time
            with pytest.raises(WorkerFailure) as caught:
                bench.worker.open(path, timeout_s=_NO_TIME_S)
        assert caught.value.kind is FailureKind.TIMEOUT, f"it was a {caught.value.kind}"
        _check_gone(processes)
        if not bench.engine.runs:
            with bench.opened(path):
                return
        measured = bench.worker.measure(path, tower_feeds(), blocks=1, runs=1)
        assert measured.ok, f"after a hang, a new process should measure: {measured.error}"

    def test_a_crash_is_a_failure(self, bench: Bench) -> None:
        """If the process ends, the request fails, open models are LOST, and the next one opens."""
        for is_under_way in (False, True):
            with bench.opened(bench.tower()) as model:
                processes = _family(bench)
                if is_under_way:
                    processes[0].suspend()  # so that it can't answer the request first
                    threading.Timer(_SOON_S, processes[0].kill).start()
                else:
                    processes[0].kill()
                _check_crashed(bench, model)
            _check_gone(processes)


def _check_crashed(bench: Bench, model: OpenModel) -> None:
    for kind in (FailureKind.CRASH, FailureKind.LOST):
        with pytest.raises(WorkerFailure) as caught:
            bench.worker.run(model, tower_feeds())
        assert caught.value.kind is kind, f"it was a {caught.value.kind}: {caught.value}"


def _check_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + _GONE_WITHIN_S
    while alive := [process.pid for process in processes if _is_alive(process)]:
        assert time.monotonic() < deadline, (
            f"processes {alive} outlived the engine's. Where the system is not Linux, whatever an "
            "engine starts must stay in its process group (no `start_new_session`)"
        )
        time.sleep(0.01)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _family(bench: Bench) -> list[psutil.Process]:
    """Return the engine's process and those that it has started."""
    process = psutil.Process(bench.worker.pid)
    return [process, *process.children(recursive=True)]


class KeepsSessionsApart:
    """Sessions and their feeds."""

    def test_a_second_feed_replaces_the_first(self, bench: Bench) -> None:
        """Timed runs use the latest feeds: larger ones take longer, smaller ones less again."""
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
        """A model that is timed also runs and lists its layers, on the same shapes as before."""
        bench.needs_runs()
        feeds = tower_feeds(_FEW_ROWS)
        with bench.opened(_open_tower(bench), feeds=feeds) as model:
            bench.worker.time(model, 1)
            assert bench.worker.run(model, feeds)["y"].shape[0] == _FEW_ROWS
            if bench.engine.layers:
                assert bench.worker.layers(model, 1), "`layer_times` returned nothing"
            assert len(bench.worker.time(model, 2)) == 2

    def test_feeds_are_kept(self, bench: Bench) -> None:
        """A session keeps its own copy of the feeds: the caller may change or free the arrays."""
        bench.needs_runs()
        text = "g (int64[4096] ids) => (float[4096, 8] y) { y = Gather(table, ids) }"
        path = bench.write("gather", model_of(text, table=np.ones((5, 8), np.float32)))
        feeds: Arrays = {"ids": np.full(4096, 4, np.int64)}
        zeros: Arrays = {"ids": np.zeros(4096, np.int64)}
        with bench.opened(path, feeds=feeds) as model:
            feeds["ids"][:] = 10**9  # reading this would access far outside of the table
            with bench.opened(path, feeds=zeros) as other:
                for _ in range(3):
                    bench.worker.run(other, zeros)
                assert min(bench.worker.time(model, 3)) > 0

    def test_timing_needs_feeds(self, bench: Bench) -> None:
        """Timing a model without feeds fails with a message that says so."""
        with bench.opened(bench.tower()) as model:
            bench.refusal(lambda: bench.worker.time(model, 1), "timed runs before any `set_feeds`")

    def test_sessions_do_not_mix(self, bench: Bench) -> None:
        """Two open models compute their own results; closing one doesn't affect the other."""
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
        """Opening and closing sessions repeatedly doesn't fill the memory."""
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
    return float(psutil.Process(bench.worker.pid).memory_info().rss) / 2**20
