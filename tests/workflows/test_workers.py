"""Tuning with several workers: which ones are used, what each did, and that it changes nothing."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.engines import _hosts as hosts
from qdqtune.engines._hardware import GpuHealth
from qdqtune.engines._hosts import EngineProcess, LocalHost
from qdqtune.engines._pool import Job, WorkerPool
from qdqtune.engines._process import FailureKind, WorkerFailure
from qdqtune.engines._worker import Worker
from qdqtune.records._errors import UsageError
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._tuning import Noise, TuneEvent, TuneResult
from qdqtune.report._tuning import tune_text
from qdqtune.resources import resource_limits
from qdqtune.workflows.tuning import _workers
from qdqtune.workflows.tuning._journal_format import read_journal
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

INFO = EngineInfo("onnxruntime", "1.2.3", "EPYC", "avx512_vnni", 1, {"a": "1"}, "float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convs that all are different subgraphs."""
    rng = np.random.default_rng(0)
    widths = (16, 32, 48, 24, 64, 40)
    body, last, weights = "", "x", {}
    for number, (before, width) in enumerate(itertools.pairwise(widths)):
        body += f"c{number} = Conv<pads=[1,1,1,1]>({last}, w{number}) r{number} = Relu(c{number})\n"
        weights[f"w{number}"] = rng.normal(size=(width, before, 3, 3)).astype(np.float32) / 17
        last = f"r{number}"
    text = f"g (float[1,16,24,24] x) => (float[1,40,24,24] {last}) {{ {body} }}"
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_from_text(text, **weights), path)
    return path


def tuned(model: Path, output_dir: Path, **options: Any) -> TuneResult:
    settings: dict[str, Any] = {"preset": "quick", "max_benchmarks": 14}
    return tune(model, engine="simulated", output_dir=output_dir, **{**settings, **options})


def bodies(result: TuneResult, kind: str) -> list[dict[str, Any]]:
    lines = (result.output_dir / "measurements.jsonl").read_text().splitlines()
    return [body for body in map(json.loads, lines) if body["kind"] == kind]


def comparisons(result: TuneResult) -> list[tuple[Any, ...]]:
    """What was compared and what came of it, without the worker and the time."""
    keys = ("reference", "candidate", "effort", "id", "gain", "error", "failure", "latency_ms")
    return sorted(tuple(body[key] for key in keys) for body in bodies(result, "measurement"))


# Places for workers on this machine.


@given(st.sets(st.integers(0, 255), min_size=1, max_size=32), st.integers(1, 6), st.integers(2, 12))
def test_workers_of_a_cpu_never_share_a_core(cores: set[int], threads: int, workers: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_workers, "usable_cores", lambda: sorted(cores))
        if workers * threads > len(cores):
            with pytest.raises(UsageError) as caught:
                _workers.local_hosts("onnxruntime", workers, threads)
            most = len(cores) // threads
            told = f"--workers {most}" if most else f"--threads {len(cores)}"
            assert told in caught.value.hint
            return
        found = _workers.local_hosts("onnxruntime", workers, threads)
    used = [core for host in found for core in host.cores]
    assert len(found) == workers
    assert all(len(host.cores) == threads for host in found)
    assert len(used) == len(set(used))
    assert set(used) <= cores
    assert len({host.name for host in found}) == workers


def test_all_cores_can_not_be_given_to_several_workers() -> None:
    with pytest.raises(UsageError, match="--workers 2 requires --threads: by default ONNX Runtime"):
        _workers.local_hosts("onnxruntime", 2, None)


def test_each_worker_of_a_gpu_engine_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    two = GpuHealth("550", "12.4", (("one", "8.9"), ("other", "8.9")), "")
    monkeypatch.setattr(_workers, "find_gpus", lambda: two)
    found = _workers.local_hosts("tensorrt", 2, None)
    assert [host.variables for host in found] == [
        {"CUDA_VISIBLE_DEVICES": "0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
    ]
    with pytest.raises(UsageError, match="needs a GPU for each, and this machine has 2") as caught:
        _workers.local_hosts("tensorrt", 3, None)
    assert "Use --workers 2" in caught.value.hint


def test_workers_share_the_memory_that_there_is() -> None:
    with resource_limits(max_memory="8GiB"):
        found = _workers.local_hosts("simulated", 4, None)
    assert [host.memory_bytes for host in found] == [2 << 30] * 4


def test_more_workers_than_there_are_cores_are_refused_before_anything_is_measured(
    model: Path, tmp_path: Path
) -> None:
    cores = len(hosts.usable_cores())
    with pytest.raises(UsageError, match=f"this process may use {cores}") as caught:
        tune(model, engine="onnxruntime", threads=1, workers=cores + 1, output_dir=tmp_path / "run")
    assert f"--workers {cores}." in caught.value.hint
    assert not (tmp_path / "run" / "measurements.jsonl").exists()


# Workers that are not alike, or disturb each other.


@contextlib.contextmanager
def pool_of(count: int) -> Iterator[WorkerPool]:
    places = [LocalHost(name=f"place {number}") for number in range(1, count + 1)]
    with contextlib.closing(
        WorkerPool([Worker("simulated", host=host) for host in places])
    ) as pool:
        yield pool


@pytest.mark.parametrize(
    ("field_name", "other"),
    [
        ("name", "openvino"),
        ("version", "1.2.4"),
        ("device", "Xeon"),
        ("isa", "avx2"),
        ("threads", 2),
        ("options", {"a": "2"}),
        ("float_type", "float16"),
    ],
)
def test_workers_that_differ_are_refused_by_the_field(
    field_name: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def info_of(worker: Worker, _: str) -> EngineInfo:
        is_other = worker.host.name == "place 3"
        return replace(INFO, **{field_name: other}) if is_other else INFO  # type: ignore[arg-type]

    monkeypatch.setattr(_workers, "engine_info", info_of)
    with pool_of(3) as pool, pytest.raises(UsageError) as caught:
        _workers.check_alike(pool, "onnxruntime", INFO)
    assert str(caught.value.what) == (
        f"The workers differ in {field_name}: worker 1 (place 1) has {getattr(INFO, field_name)}, "
        f"worker 3 (place 3) has {other}."
    )


def test_a_run_with_workers_of_two_versions_measures_nothing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = _workers.engine_info
    monkeypatch.setattr(
        _workers, "engine_info", lambda *given: replace(genuine(*given), version="0.9")
    )
    with pytest.raises(UsageError, match=r"differ in version: worker 1 .* has 1, worker 2 .* 0\.9"):
        tuned(model, tmp_path / "run", workers=2)
    assert not (tmp_path / "run" / "measurements.jsonl").exists()


def together(
    pool: WorkerPool, seen: Mapping[str, tuple[float, float]], alone_ms: float = 10.0
) -> list[str]:
    """Check workers of which each sees this noise, and takes so many milliseconds."""
    told: list[str] = []

    def check(worker: Worker) -> tuple[Noise, float]:
        detectable, ms = seen[worker.host.name]
        return Noise(1.0, detectable), ms

    _workers.check_together(pool, alone_ms, check, lambda _, message: told.append(message))
    return told


def test_workers_that_see_the_same_stay() -> None:
    with pool_of(3) as pool:
        together(pool, {f"place {n}": (0.004 * n, 10.1) for n in (1, 2, 3)})
        assert len(pool.active) == 3


@pytest.mark.parametrize("noisy", [1, 2, 3])
def test_a_worker_that_is_much_noisier_is_left_out_and_named(
    noisy: int, caplog: pytest.LogCaptureFixture
) -> None:
    seen = {f"place {n}": (0.2 if n == noisy else 0.01, 10.0) for n in (1, 2, 3)}
    with pool_of(3) as pool, caplog.at_level(logging.WARNING):
        together(pool, seen)
        left = {member.worker.host.name for member in pool.active}
        assert left == {"place 1", "place 2", "place 3"} - {f"place {noisy}"}
        assert pool.first.host.name in left
        (figures,) = [each for each in _workers.figures_of(pool) if each.left_out]
        assert f"(place {noisy})" in figures.name
    assert (
        f"worker {noisy} (place {noisy}) is left out: it sees differences from 20.0 % on, "
        "the others from 1.0 % on" in caplog.text
    )


def test_of_workers_that_slow_each_other_down_one_stays(caplog: pytest.LogCaptureFixture) -> None:
    with pool_of(3) as pool, caplog.at_level(logging.WARNING):
        told = together(pool, {f"place {n}": (0.01, 14.0) for n in (1, 2, 3)})
        assert [member.name for member in pool.active] == ["worker 1 (place 1)"]
    assert "the model takes 1.40 times as long as on one worker alone" in told
    assert caplog.text.count("side by side, the model takes 1.40 times as long") == 2


# Whole runs.


@dataclass
class InAnyOrder:
    """Lets the jobs of a batch end in an order that is drawn."""

    chance: random.Random
    orders: list[list[int]] = field(default_factory=list)

    def __call__(self, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def run(pool: WorkerPool, jobs: Sequence[Job[Any]]) -> list[Any]:
            order = self.chance.sample(range(len(jobs)), len(jobs))
            if len(order) > 1:
                self.orders.append(order)
            ended = [threading.Event() for _ in jobs]

            def later(number: int, job: Job[Any]) -> Job[Any]:
                turn = order.index(number)

                def work(worker: Worker) -> Any:
                    assert turn == 0 or ended[order[turn - 1]].wait(30)
                    result = job.action(worker)
                    ended[number].set()
                    return result

                return Job(job.what, work)

            return genuine(pool, [later(*each) for each in enumerate(jobs)])

        return run


def test_for_so_many_workers_the_scores_alone_decide(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = WorkerPool.run
    first = tuned(model, tmp_path / "first", workers=3)
    for seed in range(2):
        shuffled = InAnyOrder(random.Random(seed))
        monkeypatch.setattr(WorkerPool, "run", shuffled(genuine))
        other = tuned(model, tmp_path / f"{seed}", workers=3)
        assert any(order != sorted(order) for order in shuffled.orders)
        assert comparisons(other) == comparisons(first)
        for name in ("placement.json", "optimized_final.onnx"):
            assert (other.output_dir / name).read_bytes() == (first.output_dir / name).read_bytes()


@pytest.mark.parametrize("workflow", ["region", "subgraph"])
def test_records_name_the_worker_and_one_comparison_is_on_one(
    workflow: str, model: Path, tmp_path: Path
) -> None:
    events: list[TuneEvent] = []
    result = tuned(model, tmp_path / "run", workers=3, workflow=workflow, callbacks=[events.append])
    # The driver alone writes it: every line is whole.
    lines = read_journal(result.output_dir / "measurements.jsonl")
    assert all(line.body is not None for line in lines)
    names = {f"worker {number} (this machine)" for number in (1, 2, 3)}
    timed_on: dict[tuple[str, str, str], set[str]] = {}
    for body in bodies(result, "round"):
        for name in body["candidates"]:
            key = body["reference"], name, body["effort"]
            timed_on.setdefault(key, set()).add(body["worker"])
    for body in bodies(result, "measurement"):
        key = body["reference"], body["id"], body["effort"]
        assert timed_on[key] == {body["worker"]}
    assert set.union(*timed_on.values()) <= names
    figures = result.summary.workers
    assert {each.name for each in figures} == names
    assert all(each.jobs > 0 and not each.left_out for each in figures)
    doing = {line.partition(": ")[2].partition(",")[0] for e in events for line in e.workers}
    assert doing >= ({"seeds", "waits"} if workflow == "region" else {"subgraph 0", "waits"})
    shown = tune_text(result)
    assert f"worker 2 (this machine) {figures[1].jobs} jobs" in shown


def test_a_run_with_one_worker_does_not_speak_of_workers(model: Path, tmp_path: Path) -> None:
    events: list[TuneEvent] = []
    result = tuned(model, tmp_path / "run", callbacks=[events.append])
    assert result.summary.workers == ()
    assert "worker" not in (result.output_dir / "measurements.jsonl").read_text()
    assert not any(event.workers or event.stage == "workers" for event in events)
    assert "side by side" not in tune_text(result)


@dataclass(frozen=True)
class FailingHost(LocalHost):
    """A place that is lost at some request for timed runs."""

    left: list[int] = field(default_factory=lambda: [0])

    def start(self, *arguments: Any) -> EngineProcess:
        return _Failing(super().start(*arguments), self)


@dataclass
class _Failing:
    process: EngineProcess
    host: FailingHost

    def request(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        if op == "time":
            self.host.left[0] -= 1
        if self.host.left[0] <= 0:
            raise WorkerFailure(f"the node {self.host.name} is gone", FailureKind.HOST)
        return self.process.request(op, timeout_s, **arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.process, name)


@pytest.mark.parametrize("workflow", ["region", "subgraph"])
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("requests", [35, 55])
def test_a_lost_worker_costs_one_trial_and_changes_no_result(
    workflow: str,
    number: int,
    requests: int,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = tuned(model, tmp_path / "whole", workers=2, workflow=workflow)
    places: list[LocalHost] = [LocalHost(name="place 1"), LocalHost(name="place 2")]
    places[number] = FailingHost(name=f"place {number + 1}", left=[requests])
    monkeypatch.setattr(_workers, "local_hosts", lambda *_: places)
    result = tuned(model, tmp_path / "lost", workers=2, workflow=workflow)
    (lost,) = [each for each in result.summary.workers if each.left_out]
    assert lost.left_out == f"the node place {number + 1} is gone"
    assert (
        result.output_dir.joinpath("placement.json").read_bytes()
        == (whole.output_dir / "placement.json").read_bytes()
    )
    measured = Counter(
        (body["reference"], body["candidate"], body["effort"])
        for body in bodies(result, "measurement")
    )
    assert set(measured.values()) == {1}
    # Rounds of the lost worker don't count: a score is that of one worker.
    lines = bodies(result, "round")
    for body in bodies(result, "measurement"):
        own = [
            line for line in lines
            if body["id"] in line["candidates"]
            and all(line[key] == body[key] for key in ("reference", "effort", "worker"))
        ]  # fmt: skip
        assert len(own) == body["rounds"]
    begun_twice = {
        tuple(line["candidates"]) for line in lines if f"(place {number + 1})" in line["worker"]
    } & {
        tuple(line["candidates"]) for line in lines if f"(place {number + 1})" not in line["worker"]
    }
    assert len(begun_twice) <= 1
