"""Subgraph mode that ends before it is over: killed in each phase, spoiled, in another mode."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
from benchmarks.subgraph_models import random_model

from qdqtune.engines._worker import Worker
from qdqtune.records._errors import OutputError
from qdqtune.records._tuning import BY_TOTAL, Batch, SchemeTimes, SubgraphTimes, TuneResult
from qdqtune.search.subgraphs._observed_costs import ObservedCosts
from qdqtune.search.subgraphs._quantizable_groups import Subgraph
from qdqtune.workflows.tuning._subgraph_cache import (
    SeenInPlace,
    SubgraphCache,
    TimedGroup,
    WholeModels,
)
from qdqtune.workflows.tuning._subgraph_profiler import SubgraphProfiler
from qdqtune.workflows.tuning._tune import tune

CACHE = "autotune_cache.json"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of which the subgraphs don't tell all: after the seeds, a batch is tried."""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(random_model(20), path)
    return path


def simulated(model: Path, output: Path, **options: Any) -> TuneResult:
    settings = {
        "engine": "simulated", "engine_options": {"seed": "7"}, "preset": "quick",
        "workflow": "subgraph", "min_sqnr_db": None,
    }  # fmt: skip
    return tune(model, output_dir=output, **{**settings, **options})


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """The run that nobody disturbs."""
    result = simulated(model, tmp_path_factory.mktemp("whole") / "run")
    assert len(result.summary.batches) > 3
    return result


@pytest.fixture
def run(whole: TuneResult, tmp_path: Path) -> Path:
    """A copy of its folder."""
    return Path(shutil.copytree(whole.output_dir, tmp_path / "run"))


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Filled with the subgraphs that are timed, by key."""
    seen: Counter[str] = Counter()
    profile = SubgraphProfiler.profile

    def watched(
        profiler: SubgraphProfiler, worker: Worker, subgraph: Subgraph, *given: Any
    ) -> SubgraphTimes:
        times = profile(profiler, worker, subgraph, *given)
        seen[subgraph.key] += 1
        return times

    monkeypatch.setattr(SubgraphProfiler, "profile", watched)
    return seen


def cached(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / CACHE).read_text()))


def measured(output: Path) -> Counter[tuple[str, ...]]:
    lines = map(json.loads, (output / "measurements.jsonl").read_text().splitlines())
    return Counter(
        (line["reference"], line["candidate"], line["effort"])
        for line in lines
        if line["kind"] == "measurement"
    )


def check_same(found: TuneResult, whole: TuneResult) -> None:
    """All that matters is as if nothing had happened."""
    assert found.placement == whole.placement
    assert found.summary.speedup == whole.summary.speedup
    assert found.summary.batches == whole.summary.batches
    assert found.summary.subgraphs == whole.summary.subgraphs
    assert measured(found.output_dir) == measured(whole.output_dir)
    name = "optimized_raw.onnx"
    assert (found.output_dir / name).read_bytes() == (whole.output_dir / name).read_bytes()


class Killed(BaseException):
    """Ends a run as a kill would: nobody catches it, nothing is finished."""


def test_cut_off_before_all_layers_are_told_a_run_ends_like_the_one_that_was_not(
    model: Path,
    whole: TuneResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profiled: Counter[str],
) -> None:
    """The rounds of three seeds are in the journal, and what two of them spend their time on."""
    keep = SubgraphCache.keep_seen

    def keep_and_die(cache: SubgraphCache, key: str, seen: ObservedCosts, meant: str) -> None:
        keep(cache, key, seen, meant)
        if len(cache.seen) == 2:
            raise Killed

    monkeypatch.setattr(SubgraphCache, "keep_seen", keep_and_die)
    with pytest.raises(Killed):
        simulated(model, tmp_path / "cut")
    monkeypatch.setattr(SubgraphCache, "keep_seen", keep)
    resumed = simulated(model, tmp_path / "cut")
    check_same(resumed, whole)
    assert set(profiled.values()) == {1}
    assert len(profiled) == whole.summary.subgraphs["pieces"]
    assert resumed.summary.runs == 2
    assert resumed.summary.total_benchmarks == whole.summary.benchmarks
    # All subgraphs are known: it goes straight on with the whole model.
    assert resumed.summary.subgraph_benchmarks == 0


@pytest.mark.slow
def test_killed_in_each_phase_a_run_ends_like_the_one_that_was_not(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def journal() -> str:
        return (run / "measurements.jsonl").read_text()

    phases: list[Callable[[], bool]] = [
        lambda: (run / CACHE).exists(),
        lambda: len(cached(run)["phase_2"]["pieces"]) >= 3,
        lambda: '"round"' in journal(),
    ]
    kept: list[dict[str, Any]] = []
    for reached in phases:
        command = [
            sys.executable, "-m", "qdqtune", "tune", str(model), "-o", str(run), "-q",
            "--engine", "simulated", "--engine_option", "seed=7", "--preset", "quick",
            "--min_sqnr", "0", "--workflow", "subgraph",
        ]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (run.exists() and _is(reached)):
            time.sleep(0.02)
        workers = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not psutil.wait_procs(workers, timeout=10)[1]  # no orphan goes on
        kept.append(cached(run))
    resumed = simulated(model, run)
    check_same(resumed, whole)
    # What was known when it was killed is what it went on with.
    end = cached(run)
    for earlier in kept:
        assert earlier["phase_1"] == end["phase_1"]
        subgraphs = earlier["phase_2"]["pieces"]
        assert subgraphs == end["phase_2"]["pieces"][: len(subgraphs)]
    assert [k["phase_2"]["complete"] for k in kept] == [False, False, True]
    assert not list(run.rglob("*.tmp"))
    assert not (run / ".scratch").exists()


def _is(reached: Callable[[], bool]) -> bool:
    try:
        return reached()
    except FileNotFoundError:
        return False


def test_the_same_command_goes_on_at_no_cost(
    model: Path, whole: TuneResult, run: Path, profiled: Counter[str]
) -> None:
    again = simulated(model, run)
    assert (again.summary.benchmarks, again.summary.subgraph_benchmarks) == (0, 0)
    assert not profiled
    check_same(again, whole)
    assert again.summary.memo_hits == whole.summary.benchmarks


@pytest.mark.parametrize("content", ["{junk", '{"kind": "autotune_cache", "schema": 1}'])
def test_a_damaged_cache_is_moved_aside(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / CACHE
    path.write_text(content)
    with caplog.at_level(logging.WARNING, logger="qdqtune"):
        found = SubgraphCache(path, {"model": "m"})
    assert (found.groups, found.subgraphs, found.is_profiled) == (None, {}, False)
    assert "subgraphs are timed again" in caplog.text
    assert not path.exists()
    assert (tmp_path / "autotune_cache.damaged.json").read_text() == content


def test_a_run_goes_on_without_its_cache(
    model: Path, whole: TuneResult, run: Path, profiled: Counter[str]
) -> None:
    (run / CACHE).write_text((run / CACHE).read_text()[:-100])
    again = simulated(model, run)
    assert again.placement == whole.placement
    assert max(measured(run).values()) == 1  # scores are in the journal
    assert len(profiled) == whole.summary.subgraphs["pieces"]
    assert cached(run)["phase_2"]["complete"]


FULL_CACHE: tuple[SubgraphTimes, ObservedCosts, Batch] = (
    SubgraphTimes(
        "k",
        BY_TOTAL,
        (SchemeTimes("none", 2.0, 1.5, (0.25, 0.25), (0.0, 0.0)), SchemeTimes("full", error="no")),
        "subgraph_0000.none.onnx",
    ),
    ObservedCosts(
        frozenset({0, 2}), {0: 1.5, 2: 0.25}, 0.5, {"x": 0.1}, {"y": 0.2}, frozenset({2})
    ),
    Batch("raw", 2, 0, 1.5, None, 0.0, accepted=False),
)


def filled(path: Path, header: dict[str, Any]) -> SubgraphCache:
    cache = SubgraphCache(path, header)
    times, seen, batch = FULL_CACHE
    cache.keep_groups([TimedGroup(("a", "b"), 1.5, "part"), TimedGroup(("c",), 0.0)], 1)
    cache.describe({"k": {"nodes": ["a", "b"]}})
    cache.keep_subgraph(times)
    cache.keep_profiled()
    cache.keep_seen("key", seen, "units")
    assert cache.keep_build_s(0.5) == 0.5
    cache.keep_batches([batch])
    cache.keep_in_place([SeenInPlace(("a", "c"), seen)])
    cache.keep_refused(["c", "b"])
    cache.keep_predictions({"one over another": 1.25})
    return cache


def test_a_cache_is_read_as_it_was_written(tmp_path: Path) -> None:
    header = {"model": "m", "engine": {"name": "e", "options": {"a": 1}}, "shapes": {"x": [1, 2]}}
    written = filled(tmp_path / CACHE, header)
    found = SubgraphCache(tmp_path / CACHE, header)
    for name in (
        "groups", "structural", "subgraphs", "is_profiled", "seen", "whole_models", "build_s",
    ):  # fmt: skip
        assert getattr(found, name) == getattr(written, name)
    assert found.keep_build_s(9.0) == 0.5  # what was seen first decides
    assert found.seen_in("key", "units") == FULL_CACHE[1]
    assert found.seen_in("key", "other units") is None
    before = (tmp_path / CACHE).read_text()
    found.keep_profiled()  # nothing is lost by writing it again
    assert (tmp_path / CACHE).read_text() == before
    body = cached(tmp_path)
    assert body["header"] == header
    assert body["phase_2"]["pieces"][0]["details"] == {"nodes": ["a", "b"]}


def test_with_groups_from_elsewhere_subgraphs_stay_known(tmp_path: Path) -> None:
    written = filled(tmp_path / CACHE, {"model": "m"})
    found = SubgraphCache(tmp_path / CACHE, {"model": "m"}, told_by="a file")
    assert (found.groups, found.seen, found.subgraphs) == (None, {}, written.subgraphs)
    assert found.whole_models == WholeModels(refused=("c", "b"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"rest_ms": 0.5', '"rest_ms": Infinity'),
        ('"ms": 1.5', '"ms": -1'),
        ('"inside_ms": 1.5', '"inside_ms": NaN'),
        ("0.25,", ""),
    ],
)
def test_a_cache_with_impossible_numbers_is_damaged(old: str, new: str, tmp_path: Path) -> None:
    filled(tmp_path / CACHE, {"model": "m"})
    text = (tmp_path / CACHE).read_text()
    assert old in text
    (tmp_path / CACHE).write_text(text.replace(old, new, 1))
    assert SubgraphCache(tmp_path / CACHE, {"model": "m"}).subgraphs == {}
    assert not (tmp_path / CACHE).exists()


def test_a_cache_of_another_run_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / CACHE, {"model": "m", "quant_type": "int8"})
    with caplog.at_level(logging.WARNING, logger="qdqtune"):
        found = SubgraphCache(tmp_path / CACHE, {"model": "m", "quant_type": "fp8"})
    assert (found.groups, found.subgraphs, found.seen, found.is_profiled) == (None, {}, {}, False)
    assert "belongs to another run" in caplog.text
    assert (tmp_path / CACHE).exists()


def test_a_region_run_goes_on_where_a_subgraph_run_ended(
    model: Path, whole: TuneResult, run: Path
) -> None:
    before = measured(run)
    again = simulated(model, run, workflow="region", max_benchmarks=5)
    assert again.summary.speedup >= whole.summary.speedup
    after = measured(run)
    assert set(after.values()) == {1}  # what both try is timed once
    assert 0 < len(after - before) < 5


def test_a_subgraph_run_goes_on_where_a_region_run_ended(
    model: Path, whole: TuneResult, tmp_path: Path
) -> None:
    region = simulated(model, tmp_path / "run", workflow="region", max_benchmarks=6)
    before = measured(tmp_path / "run")
    again = simulated(model, tmp_path / "run")
    assert again.summary.speedup >= region.summary.speedup
    body = cached(tmp_path / "run")
    assert len(body["phase_2"]["pieces"]) == whole.summary.subgraphs["pieces"]
    after = measured(tmp_path / "run")
    assert set(after.values()) == {1}
    assert before.keys() < after.keys()
    # What both try, such as everything, is timed once.
    assert before.keys() & measured(whole.output_dir).keys()


def test_others_subgraphs_are_not_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "run/subgraphs").mkdir(parents=True)
    (tmp_path / "run/subgraphs/mine.onnx").write_bytes(b"mine")
    with pytest.raises(OutputError, match="subgraphs exists already"):
        simulated(model, tmp_path / "run")
    assert (tmp_path / "run/subgraphs/mine.onnx").read_bytes() == b"mine"
