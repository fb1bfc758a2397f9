"""Whatever fails in TensorRT or CUDA is one failed measurement with its reason, on the stand-in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.stand_ins.tensorrt_api.fixtures import StandInWorkers
from tests.stand_ins.tensorrt_api.situation import FAULTS, VERSIONS

from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import FailureKind, WorkerFailure

FEEDS = {"x": np.arange(24, dtype=np.float32).reshape(3, 8) - 8}
REASONS = {
    "no_device": "cudaErrorNoDevice",
    "cuda_malloc_fails": "cudaErrorMemoryAllocation",
    "builder_none": "can't build here: CUDA initialization failure",
    "network_none": "unknown flags",
    "parse_fails": "No importer registered",
    "profile_rejected": "profile is not valid",
    "build_none": "gave no reason",
    "build_fails": "Could not find any implementation",
    "deserialize_none": "stdCheckSumRead",
    "context_none": "OutOfMemory",
    "set_input_shape_false": "does not satisfy any optimization profiles",
    "set_tensor_address_false": "invalid tensor name or address",
    "execute_false": "illegal memory access",
}
"""What a measurement says, by what goes wrong."""
OTHERS = {
    "build_fails_with_cache", "crash", "hang", "set_output_allocator_false", "capture_fails",
    "report_false",
}  # fmt: skip
"""Those with tests of their own, here or with the caches."""
# What is only made once is made anew with other options, or for another GPU.
ANEW = {"builder_none": {"level": "2"}, "no_device": {"device": "1"}}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInWorkers]:
    workers = StandInWorkers(tmp_path_factory.mktemp("faults"))
    yield workers
    workers.close()


def model(folder: Path, name: str, text: str = "") -> Path:
    """A model of its own: equal ones would be built once."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        weight = np.full((8, 8), len(list(folder.iterdir())), np.float32)
        text = text or "g (float[n,8] x) => (float[n,8] y) { h = MatMul(x, w) y = Relu(h) }"
        onnx.save(model_from_text(text, w=weight), path)
    return path


def test_every_fault_is_tried() -> None:
    assert REASONS.keys() | OTHERS == set(FAULTS)


@pytest.mark.parametrize("fault", REASONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_fault_is_a_failed_measurement(workers: StandInWorkers, version: str, fault: str) -> None:
    worker = workers.worker(version)
    worker.info()
    pid = worker.pid
    path = model(workers.folder, f"{fault} {version}")
    options = SessionOptions(engine_options=ANEW.get(fault, {}))
    workers.set_fault(fault)
    measured = worker.measure(path, FEEDS, blocks=1, runs=3, drop=0, options=options)
    assert not measured.ok
    assert re.search(REASONS[fault], str(measured.error)), measured.error
    workers.set_fault("")
    again = worker.measure(path, FEEDS, blocks=1, runs=3, drop=0, options=options)
    assert again.ok, again.error
    assert worker.pid == pid


@pytest.mark.parametrize("version", VERSIONS)
def test_the_rest_of_a_comparison_goes_on(workers: StandInWorkers, version: str) -> None:
    worker = workers.worker(version)
    paths = [model(workers.folder, f"{name} {version}") for name in ("base", "bad", "good")]
    workers.set_fault(f"execute_false@bad {version}")
    measured, compared = compare_files(worker, paths, FEEDS, rounds=2, budget_s=0.2)
    assert [each.ok for each in measured] == [True, False, True]
    assert [each is not None for each in compared] == [False, True]


def test_a_crash_costs_one_measurement(workers: StandInWorkers) -> None:
    worker = workers.worker("10.16.1")
    workers.set_fault("crash@falls")
    measured = worker.measure(model(workers.folder, "falls"), FEEDS, blocks=1, runs=3)
    assert "SIGSEGV" in str(measured.error)
    assert worker.measure(model(workers.folder, "stands"), FEEDS, blocks=1, runs=3).ok


def test_a_hang_costs_one_measurement(workers: StandInWorkers) -> None:
    worker = workers.worker("10.16.1")
    worker.info()
    workers.set_fault("hang@sleeps")
    path = model(workers.folder, "sleeps")
    measured = worker.measure(path, FEEDS, blocks=1, runs=3, timeout_s=0.5)
    assert "no answer" in str(measured.error)
    assert worker.measure(model(workers.folder, "wakes"), FEEDS, blocks=1, runs=3).ok


@pytest.mark.parametrize("version", VERSIONS)
def test_what_cannot_be_captured_is_launched_by_itself(
    workers: StandInWorkers, version: str
) -> None:
    worker = workers.worker(version)
    options = SessionOptions(engine_options={"cuda_graph": "1"})
    workers.set_fault("capture_fails")
    opened = worker.open(model(workers.folder, f"uncaptured {version}"), options)
    worker.feed(opened, FEEDS)
    assert len(worker.time(opened, 3)) == 3
    workers.set_fault("execute_false")
    with pytest.raises(WorkerFailure, match="illegal memory") as caught:
        worker.time(opened, 3)
    assert "capturing" not in str(caught.value)  # the reason is not that of an earlier failure
    workers.set_fault("")
    worker.feed(opened, FEEDS)
    assert len(worker.time(opened, 3)) == 3
    worker.release(opened)


def test_layers_that_are_not_told_spoil_no_timing(workers: StandInWorkers) -> None:
    worker = workers.worker("8.6.1")
    opened = worker.open(model(workers.folder, "untold"))
    worker.feed(opened, FEEDS)
    workers.set_fault("report_false")
    with pytest.raises(WorkerFailure, match="reportToProfiler"):
        worker.layers(opened, 2)
    assert len(worker.time(opened, 3)) == 3
    workers.set_fault("")
    assert sum(layer.ms for layer in worker.layers(opened, 2)) > 0
    worker.release(opened)


def test_an_output_of_unknown_size_may_be_refused(workers: StandInWorkers) -> None:
    worker = workers.worker("10.16.1")
    path = model(workers.folder, "found", "g (float[3,8] x) => (int64[2,n] y) { y = NonZero(x) }")
    workers.set_fault("set_output_allocator_false")
    opened = worker.open(path)
    with pytest.raises(WorkerFailure, match="setOutputAllocator") as caught:
        worker.run(opened, FEEDS)
    assert caught.value.kind is FailureKind.ERROR
    workers.set_fault("")
    np.testing.assert_array_equal(worker.run(opened, FEEDS)["y"], np.nonzero(FEEDS["x"]))
    worker.release(opened)


@pytest.mark.parametrize(
    ("version", "wanted"), [("8.6.1", "zero point"), ("10.16.1", r"node 'q' \(QuantizeLinear\)")]
)
def test_a_refused_node_is_named_where_it_can_be(
    workers: StandInWorkers, version: str, wanted: str
) -> None:
    text = "g (float[3,8] x) => (int8[3,8] y) { y = QuantizeLinear(x, s, z) }"
    proto = model_from_text(text, s=np.array(0.1, np.float32), z=np.array(3, np.int8))
    proto.graph.node[0].name = "q"
    path = workers.folder / "asymmetric.onnx"
    onnx.save(proto, path)
    with pytest.raises(WorkerFailure, match=wanted) as caught:
        workers.worker(version).open(path)
    assert "asymmetric.onnx" in str(caught.value)


def test_a_gpu_that_is_not_there_is_named(workers: StandInWorkers) -> None:
    options = SessionOptions(engine_options={"device": "7"})
    with pytest.raises(WorkerFailure, match="cudaErrorInvalidDevice"):
        workers.worker("10.16.1").info(options)
