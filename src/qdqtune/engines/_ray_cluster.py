"""Workers on the nodes of a Ray cluster: the driver's side; see `qdqtune.engines._ray_node`.

A host on a node starts processes as one on this machine does, so that nobody else needs to know the
difference. Files go to the nodes when they are opened there: candidates to the worker that opens
them, and the weights that all share through Ray's object store, which takes them to each node once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from qdqtune._version import __version__
from qdqtune.engines import _registry as registry
from qdqtune.engines._process import FailureKind, WorkerFailure
from qdqtune.engines._ray_node import EngineNode, describe
from qdqtune.engines._worker_environment import LOGS, PLANS, SCRATCH
from qdqtune.graph._external_data import external_files
from qdqtune.graph._weights import WEIGHTS_FILE
from qdqtune.records._errors import UsageError
from qdqtune.records._untrusted_files import open_plain, real_path

_EXTRA = "pip install 'qdqtune[ray]'"
_HOW_TO_CHECK = (
    "Check that the cluster runs (`ray status` on one of its nodes), that this machine reaches it, "
    "and that both have the same versions of Python and Ray."
)
_REACHED_WITHIN_S = 5.0
_DESCRIBED_WITHIN_S = 120.0
_SETTINGS = {
    # If what answers is no cluster, it would be tried for a quarter of an hour.
    "RAY_NUM_REDIS_GET_RETRIES": "1",
    # Forks of this program never use the connection, and need not hear of it.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
# A node that has not answered for so much longer than its engine may take is lost.
_GRACE_S = 30.0
_PLACED_WITHIN_S = 60.0
_CHUNK_BYTES = 1 << 25
# Smaller parts go with the request instead of through the object store.
_SMALL_BYTES = 1 << 20
# What not all workers have asked for is dropped beyond this, and stored again if they do.
_MOST_STORED_BYTES = 1 << 30
# A node has folders of its own for these.
_FOLDERS = frozenset({LOGS, PLANS, SCRATCH, "TMPDIR"})
_ONCE, _FEEDS = "once.npz", ".npz"
# Requests, writes and the order to end them come at the same time.
_CONCURRENCY = 4


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to a cluster, and leave it on exit with all that runs there.

    A connection of the calling program is used if there is one, and stays.

    Args:
        address: As Ray has it: ``auto``, ``HOST:PORT``, ``ray://HOST:PORT`` or ``local``.

    Raises:
        UsageError: If Ray is not installed, or the cluster can't be reached.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise UsageError("--cluster requires Ray, which is not installed.", _EXTRA) from None
    is_own = not ray.is_initialized()
    if is_own:
        _check_reachable(address)
        with _same_signals():
            try:
                ray.init(address=address, log_to_driver=False, logging_level="error")
            except Exception as error:  # it raises many kinds
                why = [line.strip() for line in str(error).splitlines() if line.strip()]
                reason = " ".join(why[:2]) or type(error).__name__
                raise UsageError(
                    f"The Ray cluster {address} can't be used: {reason}", _HOW_TO_CHECK
                ) from None
    try:
        with contextlib.closing(Cluster(ray)) as cluster:
            yield cluster
    finally:
        if is_own:
            ray.shutdown()


@contextlib.contextmanager
def _same_signals() -> Iterator[None]:
    """Keep this program's signal handlers, which Ray replaces when it connects."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _check_reachable(address: str) -> None:
    """Refuse an address at which nothing answers: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not (host and port.isdigit()):
        return  # a word, such as auto
    try:
        with socket.create_connection((host, int(port)), _REACHED_WITHIN_S):
            pass
    except OSError as error:
        raise UsageError(
            f"The Ray cluster {address} can't be reached: {error.strerror or error}.", _HOW_TO_CHECK
        ) from None


class Place(NamedTuple):
    """Room for one worker on a node.

    Attributes:
        node_id: The node.
        name: Its name, with a number if it has several places.
        cores: Positions of the worker's cores among those of the node; None for all.
        parts: Workers that share the node's memory.
    """

    node_id: str
    name: str
    cores: Sequence[int] | None
    parts: int = 1


@dataclass(frozen=True)
class _Node:
    """A node, and what it says of itself."""

    node_id: str
    name: str
    resources: Mapping[str, float]
    facts: Mapping[str, Any]

    def room(self, threads: int | None, *, needs_gpu: bool) -> int:
        """Return how many workers the node can hold."""
        if self.unfit:
            return 0
        if needs_gpu:
            return int(self.resources.get("GPU", 0))
        cores = int(self.resources.get("CPU", 0))
        return min(1, cores) if threads is None else cores // threads

    @property
    def unfit(self) -> str:
        """Why it can't be used; empty if it can."""
        version = self.facts.get("version", __version__)
        if version != __version__:
            return f"has qdqtune {version} instead of {__version__}"
        return str(self.facts["reason"])


class Cluster:
    """A connected cluster.

    Args:
        ray: Ray's module.
    """

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._hosts: list[RayHost] = []

    def hosts(self, engine: str, workers: int, threads: int | None) -> list[RayHost]:
        """Find a place for each worker; those of different nodes first.

        Args:
            engine: The engine.
            workers: The number of workers.
            threads: Threads of each; None for all cores of a node.

        Raises:
            UsageError: If there is no room for so many, or the nodes differ.
        """
        entry = registry.entry(engine)
        nodes = self._nodes(engine)
        if not entry.measures:  # each place is a core, whatever it counts as a thread
            threads = 1
        places = _places(
            nodes, threads, needs_gpu=entry.needs_gpu, pinned=entry.measures, workers=workers
        )
        if len(places) < workers:
            unfit = [f"{node.name} {node.unfit}" for node in nodes if node.unfit]
            needed = "a GPU" if entry.needs_gpu else f"{threads or 'all'} core(s) of a node"
            raise UsageError(
                f"--workers {workers}: the cluster has room for {len(places)}, each with {needed}"
                f"{'; ' + '; '.join(unfit) if unfit else ''}.",
                f"Use --workers {len(places)}, or add nodes." if places else _HOW_TO_CHECK,
            )
        used = {place.node_id for place in places}
        _check_clocks([node for node in nodes if node.node_id in used])
        sender = FileSender(self._ray, workers)
        resources = {"num_cpus": threads or 1, "num_gpus": 0}
        if entry.needs_gpu:
            resources = {"num_cpus": 0, "num_gpus": 1}
        self._hosts = [RayHost(self._ray, place, resources, sender) for place in places]
        return self._hosts

    def _nodes(self, engine: str) -> list[_Node]:
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        asked = []
        for node in alive:
            task = self._ray.remote(describe).options(
                num_cpus=0, scheduling_strategy=_on_node(node["NodeID"])
            )
            asked.append(task.remote(engine))
        found = []
        for node, ref in zip(alive, asked, strict=True):
            try:
                facts = json.loads(self._ray.get(ref, timeout=_DESCRIBED_WITHIN_S))
            except Exception as error:  # such as a node without qdqtune
                last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
                facts = {"reason": f"does not answer: {last[0]}"}
            address = node.get("NodeManagerAddress", "")
            is_shared = sum(other.get("NodeManagerAddress") == address for other in alive) > 1
            name = f"{address} {node['NodeID'][:6]}" if is_shared else address
            found.append(_Node(node["NodeID"], name, node["Resources"], facts))
        return sorted(found, key=lambda node: (node.name, node.node_id))

    def close(self) -> None:
        """End everything that runs there."""
        for host in self._hosts:
            host.close()


def _on_node(node_id: str) -> Any:
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return strategies.NodeAffinitySchedulingStrategy(node_id, soft=False)


def _places(
    nodes: Sequence[_Node], threads: int | None, *, needs_gpu: bool, pinned: bool, workers: int
) -> list[Place]:
    """Return up to that many places, one of each node in turn."""
    room = {node.node_id: node.room(threads, needs_gpu=needs_gpu) for node in nodes}
    turns = [
        (turn, node) for turn in range(max(room.values(), default=0)) for node in nodes
        if turn < room[node.node_id]
    ][:workers]  # fmt: skip
    count = {node.node_id: sum(other is node for _, other in turns) for node in nodes}
    places = []
    for turn, node in turns:
        parts = count[node.node_id]
        cores = None
        if pinned and not needs_gpu and threads is not None:
            cores = range(turn * threads, (turn + 1) * threads)
        name = node.name if parts == 1 else f"{node.name} #{turn + 1}"
        places.append(Place(node.node_id, name, cores, parts))
    return places


def _check_clocks(nodes: Sequence[_Node]) -> None:
    limits = {node.facts.get("clock limit", ""): node.name for node in nodes}
    if len(limits) > 1:
        shown = ", ".join(f"{name} has {limit or 'none'}" for limit, name in limits.items())
        raise UsageError(
            f"The nodes differ in clock limit: {shown}.",
            "Their times can't be compared with each other: use nodes that are alike.",
        )


class FileSender:
    """Reads files for the nodes; what all of them need is put into the object store once.

    Args:
        ray: Ray's module.
        receivers: How many workers will ask for each part.

    Attributes:
        stored_bytes: Bytes that were put into the object store so far.
    """

    def __init__(self, ray: Any, receivers: int) -> None:
        self.stored_bytes = 0
        self._ray = ray
        self._receivers = receivers
        # Parts in the object store: the reference, and how many workers have not got it yet.
        self._stored: dict[tuple[Path, int, int, int], tuple[Any, int]] = {}
        self._lock = threading.Lock()

    def parts(self, path: Path, identity: int, start: int, end: int) -> Iterator[tuple[int, Any]]:
        """Yield a file's bytes from one position to another, in parts.

        Args:
            path: The file.
            identity: Its inode.
            start: The first byte.
            end: The position behind the last one.

        Yields:
            The position of each part, and its bytes or a reference to them.
        """
        with open_plain(path) as file:
            while start < end:
                length = min(_CHUNK_BYTES, end - start)
                if length < _SMALL_BYTES:
                    file.seek(start)
                    yield start, file.read(length)
                else:
                    yield start, self._shared((path, identity, start, length), file)
                start += length

    def _shared(self, key: tuple[Path, int, int, int], file: Any) -> Any:
        with self._lock:
            ref, waiting = self._stored.pop(key, (None, self._receivers))
            if ref is None:
                _, _, start, length = key
                file.seek(start)
                ref = self._ray.put(file.read(length))
                self.stored_bytes += length
            if waiting > 1:  # the last one gets it; then the store may drop it
                self._stored[key] = (ref, waiting - 1)
            while sum(length for *_, length in self._stored) > _MOST_STORED_BYTES:
                del self._stored[next(iter(self._stored))]
            return ref


@dataclass
class RayHost:
    """A place on a node, with the actor that runs processes there.

    Attributes:
        ray: Ray's module.
        place: The place.
        resources: What the actor needs, as Ray has it.
        sender: Reads files for it.
    """

    ray: Any
    place: Place
    resources: Mapping[str, float]
    sender: FileSender
    _actor: Any = field(default=None, init=False)
    # The inode of each file on the node, and how much of it is there.
    _sent: dict[Path, tuple[int, int, int]] = field(default_factory=dict, init=False)

    is_here = False

    @property
    def name(self) -> str:
        """See `Host`."""
        return self.place.name

    def start(
        self,
        worker_class: str,
        variables: Mapping[str, str],
        log_path: Path | None,  # noqa: ARG002 - what it prints stays on the node
        memory_bytes: int | None,  # noqa: ARG002 - a node knows how much it has
    ) -> RemoteProcess:
        """See `Host`."""
        if self._actor is None:
            actor_class = self.ray.remote(EngineNode).options(
                **self.resources, max_concurrency=_CONCURRENCY, max_restarts=0,
                scheduling_strategy=_on_node(self.place.node_id),
            )  # fmt: skip
            cores = None if self.place.cores is None else list(self.place.cores)
            self._actor = actor_class.remote(cores, self.place.parts)
            self._sent.clear()
        own = {key: value for key, value in variables.items() if key not in _FOLDERS}
        number = self.call("start", _PLACED_WITHIN_S, worker_class, json.dumps(own))
        return RemoteProcess(self, number)

    def call(self, method: str, limit_s: float, *arguments: Any) -> Any:
        """Call a method of the actor.

        Raises:
            WorkerFailure: If the actor is gone, or does not answer in time.
        """
        try:
            ref = getattr(self._actor, method).remote(*arguments)
            return self.ray.get(ref, timeout=limit_s if math.isfinite(limit_s) else None)
        except self.ray.exceptions.GetTimeoutError:
            why = f"gave no answer to '{method}' within {limit_s:.0f} s"
        except self.ray.exceptions.RayTaskError as error:
            why = f"failed at '{method}': {type(error.cause).__name__}: {error.cause}"
        except (self.ray.exceptions.RayError, AttributeError) as error:
            first = str(error).strip().splitlines()[:1] or [type(error).__name__]
            why = f"is gone: {first[0]}"
        self.close()
        raise WorkerFailure(f"the node {self.name} {why}", FailureKind.HOST)

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the actor, if there is one, without waiting for it."""
        if self._actor is not None:
            with contextlib.suppress(self.ray.exceptions.RayError):
                getattr(self._actor, method).remote(*arguments)

    def send(self, path: Path, folder: Path) -> str:
        """Make sure that the node has a file as it is now; return its name there.

        Args:
            path: The file.
            folder: The folder that it is in, or one above it; the node has one for each.
        """
        name, found = _name_there(path, folder), path.stat()
        inode, written, there = self._sent.get(path, (0, 0, 0))
        now = found.st_ino, found.st_mtime_ns, found.st_size
        if now == (inode, written, there):
            return name
        self._remove_feeds()
        # Weights are only ever appended to a shared file; any other file is a new one.
        is_longer = path.name == WEIGHTS_FILE and inode == found.st_ino and there < found.st_size
        start = there if is_longer else 0
        self._write(path, name, found.st_ino, start, found.st_size)
        self._sent[path] = now
        return name

    def _remove_feeds(self) -> None:
        """Remove inputs from the node that are gone here."""
        gone = [path for path in self._sent if path.suffix == _FEEDS and not path.exists()]
        for path in gone:
            del self._sent[path]
            self.tell("remove", _name_there(path, path.parent))

    def send_once(self, path: Path) -> str:
        """Write a file that is read once to the node, over the last such file."""
        found = path.stat()
        self._write(path, _ONCE, found.st_ino, 0, found.st_size)
        return _ONCE

    def _write(self, path: Path, name: str, inode: int, start: int, end: int) -> None:
        for offset, content in self.sender.parts(path, inode, start, end):
            self.call("write", _PLACED_WITHIN_S + _GRACE_S, name, offset, content)

    def close(self) -> None:
        """End the actor with everything that it has started."""
        actor, self._actor = self._actor, None
        if actor is not None:
            with contextlib.suppress(Exception):  # the node may be gone
                self.ray.get(actor.close.remote(), timeout=_REACHED_WITHIN_S)
            with contextlib.suppress(Exception):
                self.ray.kill(actor)


def _name_there(path: Path, folder: Path) -> str:
    digest = hashlib.blake2b(str(folder).encode(), digest_size=8).hexdigest()
    return f"{digest}/{path.relative_to(folder)}"


@dataclass
class RemoteProcess:
    """A process on a node; see `EngineProcess`.

    Attributes:
        host: The node.
        number: The number of the process there.
        pid: Its process id there.
    """

    host: RayHost
    number: int
    pid: int = 0

    def request(self, op: str, timeout_s: float, **arguments: Any) -> Any:
        """See `EngineProcess`."""
        given = dict(arguments)
        try:
            if "path" in given:
                model = real_path(given["path"])
                for file in external_files(model):
                    self.host.send(file, model.parent)
                given["path"] = self.host.send(model, model.parent)
            if "feeds" in given:
                feeds = Path(given["feeds"])
                keeps = op != "run"  # the feeds of timed runs are read again and again
                given["feeds"] = (
                    self.host.send(feeds, feeds.parent) if keeps else self.host.send_once(feeds)
                )
        except (OSError, ValueError) as error:  # the model is to blame, not the node
            raise WorkerFailure(f"it can't be sent: {error}", FailureKind.ERROR) from None
        limit_s = timeout_s + _GRACE_S
        reply, content = self.host.call(
            "request", limit_s, self.number, op, timeout_s, json.dumps(given)
        )
        answer = json.loads(reply)
        if "failure" in answer:
            raise WorkerFailure(
                answer["failure"], FailureKind(answer["kind"]), answer.get("details", "")
            )
        if "outputs" in arguments:
            Path(arguments["outputs"]).write_bytes(content)
        self.pid = answer["pid"]
        return answer["result"]

    def interrupt(self) -> None:
        """See `EngineProcess`."""
        self.host.tell("interrupt", self.number)

    def close(self) -> None:
        """See `EngineProcess`."""
        self.host.tell("end", self.number)

    kill = close
