"""Workers on nodes without a cluster: places, files, faults, and what crosses."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import model_from_text

from qdqtune.engines import _ray_cluster as ray_cluster
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._process import FailureKind, WorkerFailure
from qdqtune.engines._ray_cluster import Cluster, FileSender, Place, RayHost, connected
from qdqtune.engines._ray_node import EngineNode, describe
from qdqtune.engines._worker import Worker
from qdqtune.graph._weights import WEIGHTS_FILE
from qdqtune.records._errors import UsageError
from qdqtune.workflows.tuning._tune import tune

_QUANTA = (str, int, float, bytes, type(None))


@dataclass
class Ref:
    """What stands for a value in Ray."""

    value: Any
    error: Exception | None = None


class FakeRay:
    """Ray as the driver sees it; its actors and tasks run in this process, at once."""

    def __init__(self) -> None:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            def __init__(self, cause: Exception) -> None:
                self.cause = cause

        self.exceptions = SimpleNamespace(
            RayError=RayError,
            RayTaskError=RayTaskError,
            GetTimeoutError=type("GetTimeoutError", (RayError,), {}),
        )
        self.written: Counter[str] = Counter()
        self.stored_bytes = 0
        self.lost: str = ""
        self.actors: list[Any] = []
        self.descriptions: dict[str, dict[str, Any]] = {}

    def remote(self, what: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._begin(what)))

    def _begin(self, what: Any) -> Callable[..., Any]:
        def begin(*arguments: Any) -> Any:
            if what is EngineNode:
                self.actors.append(EngineNode(*arguments))
                return FakeActor(self, self.actors[-1])
            return Ref(what(*arguments))

        return begin

    def put(self, value: bytes) -> Ref:
        self.stored_bytes += len(value)
        return Ref(value)

    def get(self, ref: Ref, timeout: float | None) -> Any:
        assert timeout is None or timeout > 0
        if ref.error is not None:
            raise ref.error
        return ref.value

    def kill(self, actor: FakeActor) -> None:
        actor.node.close()


@dataclass
class FakeActor:
    ray: FakeRay
    node: EngineNode

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._call(method, given))

    def _call(self, method: str, given: tuple[Any, ...]) -> Ref:
        plain = [each.value if isinstance(each, Ref) else each for each in given]
        assert all(isinstance(each, _QUANTA) for each in plain), "only JSON and bytes cross"
        if method == self.ray.lost:
            return Ref(None, self.ray.exceptions.RayError("The actor died.\nMore of it."))
        if method == "write":
            name, _, content = plain
            self.ray.written[Path(name).name] += len(content)
        try:
            return Ref(getattr(self.node, method)(*plain))
        except Exception as error:
            return Ref(None, self.ray.exceptions.RayTaskError(error))


@dataclass
class Setup:
    ray: FakeRay = field(default_factory=FakeRay)
    workers: list[Worker] = field(default_factory=list)


@pytest.fixture
def nodes() -> Iterator[Callable[[int], Setup]]:
    """Starts workers, each on a node of its own."""
    setup = Setup()

    def start(count: int) -> Setup:
        sender = FileSender(setup.ray, count)
        for number in range(count):
            place = Place(node_id(number), f"node {number}", None)
            host = RayHost(setup.ray, place, {"num_cpus": 1}, sender)
            setup.workers.append(Worker("simulated", timeout_s=60, host=host))
        return setup

    yield start
    for worker in setup.workers:
        worker.close()
        worker.host.close()


def node_id(number: int) -> str:
    """As Ray has them."""
    return f"{number + 1:056x}"


def conv(path: Path, seed: int, weights: Path | None = None) -> Path:
    """Writes a Conv whose weights are in the file, or lie beside it."""
    w = np.random.default_rng(seed).normal(size=(64, 64, 5, 5)).astype(np.float32)
    text = "g (float[1,64,8,8] x) => (float[1,64,4,4] y) { y = Conv(x, w) }"
    model = model_from_text(text, w=w)
    if weights is None:
        onnx.save(model, path)
    else:
        onnx.save(model, path, save_as_external_data=True, location=weights.name)
    return path


FEEDS = {"x": np.ones((1, 64, 8, 8), np.float32)}


# What crosses.


def test_a_worker_on_a_node_answers_like_one_here(nodes, tmp_path):
    path = conv(tmp_path / "model.onnx", 0)
    (remote,) = nodes(1).workers
    with Worker("simulated", timeout_s=60) as here:
        assert remote.info() == here.info()
        one, other = (worker.measure(path, FEEDS) for worker in (remote, here))
        assert one.ok
        assert one.blocks_ms == other.blocks_ms
        for each in (remote, here):
            with each.opened(path) as model:
                outputs = each.run(model, FEEDS)
                assert outputs["y"].shape == (1, 64, 4, 4)


def test_files_cross_to_each_node_once_as_long_as_they_are_the_same(nodes, tmp_path):
    setup = nodes(2)
    weights = tmp_path / "weights.bin"
    path = conv(tmp_path / "model.onnx", 0, weights)
    size = weights.stat().st_size
    for worker in setup.workers * 2:
        assert worker.measure(path, FEEDS).ok
    assert setup.ray.written["weights.bin"] == 2 * size
    assert setup.ray.written["model.onnx"] == 2 * path.stat().st_size
    conv(path, 1, weights)  # the same names, and other weights
    assert setup.workers[0].measure(path, FEEDS).ok
    assert setup.ray.written["weights.bin"] == 3 * size


def test_of_weights_that_candidates_share_only_what_was_added_crosses(nodes, tmp_path):
    (worker,) = (setup := nodes(1)).workers
    weights = tmp_path / WEIGHTS_FILE
    path = conv(tmp_path / "model.onnx", 0, weights)
    before = weights.stat().st_size
    assert worker.measure(path, FEEDS).ok
    with weights.open("ab") as file:
        file.write(b"more" * 1000)
    assert worker.measure(path, FEEDS).ok
    assert setup.ray.written[WEIGHTS_FILE] == before + 4000
    (node,) = setup.ray.actors
    (there,) = node._folder.path.rglob(WEIGHTS_FILE)
    assert there.read_bytes() == weights.read_bytes()


def test_large_parts_are_stored_once_for_all_workers(tmp_path):
    ray, path = FakeRay(), tmp_path / "weights"
    content = bytes(range(256)) * 8192
    path.write_bytes(content)
    sender = FileSender(ray, 3)
    for _ in range(3):
        parts = list(sender.parts(path, path.stat().st_ino, 0, len(content)))
        assert b"".join(part.value for _, part in parts) == content
    assert sender.stored_bytes == ray.stored_bytes == len(content)
    assert not sender._stored  # the last one got it
    ((start, small),) = sender.parts(path, 0, 5, 25)
    assert (start, small) == (5, content[5:25])


def test_what_few_workers_ask_for_does_not_fill_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_cluster, "_MOST_STORED_BYTES", 5 << 20)
    sender, size = FileSender(FakeRay(), 4), 1 << 20
    for number in range(20):
        path = tmp_path / f"{number}"
        path.write_bytes(bytes([number]) * size)
        ((_, part),) = sender.parts(path, number, 0, size)
        assert part.value[:1] == bytes([number])
    assert len(sender._stored) == 5
    ((_, part),) = sender.parts(tmp_path / "0", 0, 0, size)  # which was dropped
    assert part.value[:1] == b"\0"


def test_inputs_that_are_gone_here_are_removed_from_the_node(nodes, tmp_path):
    (worker,) = (setup := nodes(1)).workers
    path = conv(tmp_path / "model.onnx", 0)
    for _ in range(5):
        assert worker.measure(path, FEEDS).ok
    (node,) = setup.ray.actors
    assert len(list(node._folder.path.rglob("feeds*.npz"))) == 1


def test_a_model_that_can_not_be_sent_is_to_blame_and_not_the_node(nodes, tmp_path):
    (worker,) = nodes(1).workers
    with pytest.raises(WorkerFailure, match="it can't be sent") as caught:
        worker.open(tmp_path / "missing.onnx")
    assert caught.value.kind is FailureKind.ERROR
    assert worker.measure(conv(tmp_path / "model.onnx", 0), FEEDS).ok


# What a node accepts.


@pytest.fixture
def node():
    node = EngineNode(None, 1)
    yield node
    node.close()


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/tmp/escaped"])
def test_a_node_writes_nothing_outside_its_folder(node, name):
    with pytest.raises(ValueError, match="outside"):
        node.write(name, 0, b"content")
    with pytest.raises(ValueError, match="outside"):
        node.request(1, "open", 1.0, json.dumps({"path": name}))


class _Evil:
    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._marker,))


@pytest.mark.parametrize("kind", ["object array", "pickle"])
def test_no_file_is_unpickled_on_a_node(node, kind, tmp_path):
    marker, evil = tmp_path / "marker", io.BytesIO()
    if kind == "pickle":
        evil.write(pickle.dumps(_Evil(marker)))
    else:
        names = np.array(["x"])
        np.savez(evil, array0=np.array([_Evil(marker)]), names=names, dtypes=np.array([""]))
    path = conv(tmp_path / "model.onnx", 0)
    number = node.start(registry.worker_class("simulated"), "{}")
    node.write("m/model.onnx", 0, path.read_bytes())
    node.write("m/feeds.npz", 0, evil.getvalue())
    options = SessionOptions().to_dict()
    reply, _ = node.request(
        number, "open", 60.0, json.dumps({"path": "m/model.onnx", "options": options})
    )
    session = json.loads(reply)["result"]["session"]
    reply, _ = node.request(
        number, "feed", 60.0, json.dumps({"session": session, "feeds": "m/feeds.npz"})
    )
    assert json.loads(reply)["kind"] == FailureKind.ERROR.value
    assert not marker.exists()
    pickle.loads(pickle.dumps(_Evil(marker)))
    assert marker.exists()  # it would have been


def test_an_engine_that_ends_is_a_failure_of_the_model(nodes, tmp_path):
    (worker,) = nodes(1).workers
    model = worker.open(conv(tmp_path / "model.onnx", 0))
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerFailure) as caught:
        worker.feed(model, FEEDS)
    assert caught.value.kind is FailureKind.CRASH
    assert worker.measure(tmp_path / "model.onnx", FEEDS).ok  # in a new process


@pytest.mark.parametrize("method", ["start", "write", "request"])
def test_a_node_that_is_gone_is_told_apart(nodes, method, tmp_path):
    (worker,) = (setup := nodes(1)).workers
    path = conv(tmp_path / "model.onnx", 0)
    told: list[str] = []
    worker.process.on_host_lost = told.append
    setup.ray.lost = method
    with pytest.raises(WorkerFailure) as caught:
        worker.open(path)
    assert caught.value.kind is FailureKind.HOST
    assert told == ["the node node 0 is gone: The actor died."]
    setup.ray.lost = ""
    assert worker.measure(path, FEEDS).ok  # it has come back, without files
    assert setup.ray.written["model.onnx"] >= path.stat().st_size


# Places on nodes.


def cluster_of(monkeypatch: pytest.MonkeyPatch, *facts: dict[str, Any], cores: int = 4) -> Cluster:
    """A cluster whose nodes say this of themselves."""
    ray, said = FakeRay(), []
    for number, told in enumerate(facts):
        resources = {"CPU": float(cores), **({"GPU": told["gpus"]} if "gpus" in told else {})}
        said.append(json.dumps({**json.loads(describe("simulated")), **told}))
        ray.descriptions[node_id(number)] = resources
    ray.nodes = lambda: [  # type: ignore[attr-defined]
        {"Alive": True, "NodeID": node, "NodeManagerAddress": f"10.0.0.{n}", "Resources": resources}
        for n, (node, resources) in enumerate(ray.descriptions.items())
    ]
    answers = iter(said)
    monkeypatch.setattr(ray_cluster, "describe", lambda _: next(answers))
    return Cluster(ray)


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.integers(1, 3), st.integers(1, 10))
def test_places_have_cores_of_their_own_and_are_spread(
    cores: list[int], threads: int, workers: int
) -> None:
    facts = {"reason": ""}
    nodes = [
        ray_cluster._Node(f"id{n}", f"node {n}", {"CPU": float(own)}, facts)
        for n, own in enumerate(cores)
    ]
    places = ray_cluster._places(nodes, threads, needs_gpu=False, pinned=True, workers=workers)
    room = [own // threads for own in cores]
    assert len(places) == min(workers, sum(room))
    used = [(place.node_id, core) for place in places for core in place.cores or ()]
    assert len(used) == len(set(used)) == len(places) * threads
    assert all(core < cores[int(node[2:])] for node, core in used)
    count = Counter(place.node_id for place in places)
    assert all(place.parts == count[place.node_id] for place in places)
    assert len({place.name for place in places}) == len(places)
    # No node has two more than one that has room left.
    for n, free in enumerate(room):
        if count[f"id{n}"] < free:
            assert max(count.values(), default=0) <= count[f"id{n}"] + 1


def test_more_workers_than_the_cluster_has_room_for(monkeypatch):
    cluster = cluster_of(monkeypatch, {}, {}, cores=2)
    with pytest.raises(UsageError, match="--workers 5: the cluster has room for 4") as caught:
        cluster.hosts("simulated", 5, None)
    assert "Use --workers 4" in caught.value.hint


def test_a_node_that_can_not_be_used_is_named_with_the_reason(monkeypatch):
    cluster = cluster_of(monkeypatch, {"version": "0.0.1"}, {"reason": "no engine there"}, {})
    assert [host.name for host in cluster.hosts("onnxruntime", 1, 4)] == ["10.0.0.2"]
    cluster = cluster_of(monkeypatch, {"version": "0.0.1"}, {"reason": "has no engine"}, {})
    with pytest.raises(UsageError) as caught:
        cluster.hosts("onnxruntime", 2, 4)
    assert "10.0.0.0 has qdqtune 0.0.1 instead of" in caught.value.what
    assert "10.0.0.1 has no engine" in caught.value.what


def test_nodes_with_other_clock_limits_are_refused_by_name(monkeypatch):
    facts = {"clock limit": "3000000"}, {"clock limit": "2400000"}
    with pytest.raises(UsageError, match="differ in clock limit") as caught:
        cluster_of(monkeypatch, *facts).hosts("onnxruntime", 2, 4)
    assert "10.0.0.0 has 3000000, 10.0.0.1 has 2400000" in caught.value.what
    assert cluster_of(monkeypatch, *facts).hosts("onnxruntime", 1, 4)  # one is like itself


def test_a_worker_of_a_gpu_engine_gets_a_gpu(monkeypatch):
    cluster = cluster_of(monkeypatch, {"gpus": 2}, {"gpus": 1})
    found = cluster.hosts("tensorrt", 3, None)
    assert [host.resources for host in found] == [{"num_cpus": 0, "num_gpus": 1}] * 3
    assert sorted(host.name for host in found) == ["10.0.0.0 #1", "10.0.0.0 #2", "10.0.0.1"]
    with pytest.raises(UsageError, match="room for 3, each with a GPU"):
        cluster_of(monkeypatch, {"gpus": 2}, {"gpus": 1}).hosts("tensorrt", 4, None)


# Clusters that are not there.


def test_without_ray_the_message_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match="--cluster requires Ray") as caught:
        tune(conv(tmp_path / "m.onnx", 0), engine="simulated", cluster="auto", workers=2,
             output_dir=tmp_path / "run")  # fmt: skip
    assert caught.value.hint == "pip install 'qdqtune[ray]'"


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_can_not_be_reached_is_an_error_before_anything_is_measured(
    scheme, tmp_path
):
    with socket.socket() as unused:  # bound, and nobody listens
        unused.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(
            UsageError, match=f"The Ray cluster {address} can't be reached"
        ) as caught:
            tune(conv(tmp_path / "m.onnx", 0), engine="simulated", cluster=address, workers=2,
                 output_dir=tmp_path / "run")  # fmt: skip
    assert "`ray status`" in caught.value.hint
    assert not (tmp_path / "run" / "measurements.jsonl").exists()


def test_an_address_that_makes_no_sense_is_an_error():
    address = pytest.raises(UsageError, match="nonsense can't be used: Invalid address")
    with address as caught, connected("nonsense"):
        pass
    assert "`ray status`" in caught.value.hint
