"""Whatever goes wrong in trtexec is one failed measurement with its reason, on the stand-in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec
from tests.stand_ins.trtexec_faults import HARMLESS, NAMED, WHEN_BUILDING, WHEN_RUNNING

from qdqtune.engines._comparison import compare_files
from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import FailureKind, Worker, WorkerFailure

TRTEXEC = "qdqtune.engines.tensorrt._trtexec:TrtexecEngine"
VERSIONS = ("8.6.1", "10.16.1", "11.1.0")
FEEDS = {"x": np.ones((4, 8), np.float32)}
REASONS = {
    "build_fails": "Could not find any implementation",
    "streamed_build_fails": "Could not find any implementation",
    "out_of_memory": "OutOfMemory",
    "segfault": "SIGSEGV",
    "empty_engine": "empty|no engine|0 bytes",
    "exits_zero_but_failed": "could not be created|Building engine failed",
    "no_summary": "no GPU compute time",
    "nan_latency": "nan",
    "inference_fails": "Error occurred during inference",
    "segfault_in_run": "SIGSEGV",
    "out_of_memory_in_run": "OutOfMemory",
}
"""What a measurement says, by what goes wrong; what hangs has tests of its own."""

Start = Callable[..., Worker]


def model(folder: Path, name: str) -> Path:
    """A model of its own: equal ones would be built once."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        weight = np.full((8, 8), len(list(folder.iterdir())), np.float32)
        text = "g (float[4,8] x) => (float[4,8] y) { h = MatMul(x, w) y = Relu(h) }"
        onnx.save(model_from_text(text, w=weight), path)
    return path


def assert_says(error: str | None, fault: str) -> None:
    """The reason is told, not only the name of the model."""
    said = str(error).replace(f"{fault}.onnx", "")
    assert re.search(REASONS[fault], said), error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    programs = write_stand_in_trtexec(tmp_path_factory.mktemp("stand-in"))
    workers = []

    def start(version: str, **environment: object) -> Worker:
        variables = stand_in_environment(programs, version, **environment)
        place = LocalHost(variables=variables)
        worker = Worker(TRTEXEC, SessionOptions(), timeout_s=20.0, host=place)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.close()


@pytest.fixture(scope="module", params=VERSIONS)
def worker(request: pytest.FixtureRequest, start: Start) -> Worker:
    return start(request.param, fault=NAMED)


def test_every_fault_is_tried() -> None:
    hanging = {"hang", "hang_in_run"}
    assert REASONS.keys() | hanging == {*WHEN_BUILDING, *WHEN_RUNNING}


@pytest.mark.parametrize("fault", REASONS)
def test_a_fault_is_a_failed_measurement(worker: Worker, folder: Path, fault: str) -> None:
    worker.info()
    pid = worker.pid
    measured = worker.measure(model(folder, fault), FEEDS, blocks=1, runs=3, drop=0)
    assert not measured.ok
    assert_says(measured.error, fault)
    assert worker.pid == pid


@pytest.mark.parametrize("fault", HARMLESS)
def test_a_strange_log_spoils_nothing(worker: Worker, folder: Path, fault: str) -> None:
    measured = worker.measure(model(folder, fault), FEEDS, blocks=1, runs=3, drop=0)
    assert measured.ok, measured.error
    assert 0.001 < measured.latency_ms < 1.0


def test_the_rest_of_a_comparison_goes_on(worker: Worker, folder: Path) -> None:
    faults = ["segfault", "no_summary", "build_fails"]
    paths = [model(folder, name) for name in ("base", *faults, "good")]
    measured, compared = compare_files(worker, paths, FEEDS, rounds=2, budget_s=0.5)
    assert [each.ok for each in measured] == [True, *(False for _ in faults), True]
    assert [each is not None for each in compared] == [*(False for _ in faults), True]
    for fault, each in zip(faults, measured[1:-1], strict=True):
        assert_says(each.error, fault)


@pytest.mark.parametrize("fault", ["truncated_profile", "truncated_layers", "no_profile"])
def test_layers_that_cannot_be_read_are_a_reason(worker: Worker, folder: Path, fault: str) -> None:
    opened = worker.open(model(folder, fault))
    worker.feed(opened, FEEDS)
    with pytest.raises(WorkerFailure, match=r"cut off|can't be read|no file|no layers") as caught:
        worker.layers(opened, 3)
    assert caught.value.kind is FailureKind.ERROR
    assert len(worker.time(opened, 2)) == 2
    worker.release(opened)


@pytest.mark.parametrize("version", VERSIONS[:2])
def test_without_a_gpu(start: Start, folder: Path, version: str) -> None:
    worker = start(version, fault="no_gpu")
    assert worker.info().version == version
    measured = worker.measure(model(folder, "good"), FEEDS)
    assert re.search("Cuda failure|Cannot find any available devices", str(measured.error))


def test_hangs_are_stopped(start: Start, folder: Path) -> None:
    worker = start("10.16.1", fault=NAMED)
    worker.info()
    opened = worker.open(model(folder, "hang_in_run"))
    worker.feed(opened, FEEDS)
    with pytest.raises(WorkerFailure) as caught:
        worker.time(opened, 1, timeout_s=0.6)
    assert caught.value.kind is FailureKind.TIMEOUT
    measured = worker.measure(model(folder, "hang"), FEEDS, timeout_s=1.0)
    assert "1 s" in str(measured.error), measured.error
    again = worker.measure(model(folder, "good"), FEEDS, blocks=1, runs=3)
    assert again.ok, again.error


@pytest.mark.parametrize("version", VERSIONS[:1])
def test_unknown_options_are_left_out_and_not_asked_for_again(
    start: Start, folder: Path, tmp_path: Path, version: str
) -> None:
    calls = tmp_path / "calls.jsonl"
    worker = start(version, without="exportLayerInfo profilingVerbosity", calls=calls)
    for name in ("good", "base"):
        measured = worker.measure(model(folder, name), FEEDS, blocks=1, runs=3)
        assert measured.ok, measured.error
    said = [json.loads(line) for line in calls.read_text().splitlines()]
    asked = [call for call in said if any(arg.startswith("--exportLayerInfo") for arg in call)]
    assert len(asked) == 1
