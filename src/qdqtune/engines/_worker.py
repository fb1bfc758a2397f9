"""The parent's side of the worker: opens, runs and times models in a child process."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from qdqtune.engines import _registry as registry
from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._process import (
    ChildProcess,
    FailureKind,
    WorkerFailure,
    read_info,
    read_layers,
    read_opened,
    read_samples,
    read_seconds,
    understand,
)
from qdqtune.engines._worker_environment import LOGS, OPENING, SCRATCH, read_arrays, write_arrays
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._external_data import is_small
from qdqtune.records._measurement import EngineInfo, LayerTime, Measurement
from qdqtune.resources._limits import current_limits

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs

__all__ = ["FailureKind", "OpenModel", "StoredFeeds", "Worker", "WorkerFailure"]


_CHILD_ENVIRONMENT = {
    # Opening and closing hundreds of sessions must not fragment memory over many heaps.
    "MALLOC_ARENA_MAX": "1",
}


@dataclass(frozen=True)
class OpenModel:
    """A model opened in a worker.

    Attributes:
        path: The model file.
        inputs: The model's inputs.
        build_s: Seconds the engine took to open it.
        session: Number of the session inside the child.
        generation: Number of the child; the model is lost when that child ends.
    """

    path: str
    inputs: tuple[InputSpec, ...]
    build_s: float
    session: int
    generation: int


@dataclass(frozen=True)
class StoredFeeds:
    """Inputs written once, for any number of models opened in the same worker."""

    path: Path


class Worker:
    """An engine in a child process, under the resource limits in effect where it is created.

    Args:
        engine: Name of an engine in the registry, or ``module:Class`` for one under test.
        options: Default options for opening models.
        timeout_s: Default limit for each request; None for the user's limit, or else the engine's.
            No request may take longer than the user's limit.
        log_path: File for the engine's output, limited in size.
        environment: Variables set in the child in addition to the inherited ones.
        scratch: Parent of its folder for inputs and outputs; None for the system's temporary
            folder.
        opening: Index of this process among those of one comparison, from 0 on. A simulated machine
            varies with it, as openings differ on real machines.

    Attributes:
        engine: As passed.
        building_s: Seconds that the engine spent opening models, measured by itself.
        timing_s: Seconds that it spent in timed runs, measured by itself.
        contended_s: Total seconds that its threads waited for a core in timed runs.
        waited_s: Seconds that callers waited for its answers.
        deaths_by_layers: Number of crashes and hangs on requests for layers.
        scratch: Its folder, which is removed with it.
        memory_bytes: Memory limit of the child; None if there is none.

    Everything that can fail inside the engine raises ``WorkerFailure``; ``measure`` and
    ``qdqtune.engines._comparison.compare_files`` turn it into a failed ``Measurement``.
    """

    def __init__(
        self,
        engine: str = registry.REFERENCE,
        options: SessionOptions | None = None,
        *,
        timeout_s: float | None = None,
        log_path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        scratch: Path | None = None,
        opening: int = 0,
    ) -> None:
        is_path = ":" in engine
        self.engine = engine
        self._engine = engine if is_path else registry.worker_class(engine)
        self.options = options or SessionOptions()
        limits = current_limits()
        self._longest_s = limits.timeout_s
        self.memory_bytes = limits.memory_bytes
        entry = EngineEntry(engine, "") if is_path else registry.entry(engine)
        set_s = timeout_s or limits.timeout_s
        self.timeout_s = set_s or entry.open_limit_s
        self._small_limit_s = None if set_s else entry.small_limit_s
        self.building_s = 0.0
        self.timing_s = 0.0
        self.contended_s = 0.0
        self.waited_s = 0.0
        self.deaths_by_layers = 0
        self._log_path = log_path
        self._folder = TemporaryFolder(scratch)
        self.scratch = self._folder.path
        self._environment = {
            **_CHILD_ENVIRONMENT,
            SCRATCH: str(self.scratch),
            "TMPDIR": str(self.scratch),  # files that an engine leaves there are removed as well
            LOGS: str(log_path.parent.absolute()) if log_path is not None else "",
            OPENING: str(opening),
            **(environment or {}),
        }
        self._child: ChildProcess | None = None
        self._generation = 0
        self._stored = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child and removes the scratch folder."""
        if self._child is not None:
            self._child.close()
            self._child = None
        self._folder.cleanup()

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return None if self._child is None else self._child.pid

    def info(
        self, options: SessionOptions | None = None, *, timeout_s: float | None = None
    ) -> EngineInfo:
        """Returns the engine, version and device in use."""
        reply = self._ask("info", timeout_s, options=(options or self.options).to_dict())
        return understand("info", read_info, reply)

    def open(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        *,
        timeout_s: float | None = None,
    ) -> OpenModel:
        """Opens a model file."""
        full = os.path.abspath(path)
        if timeout_s is None and self._small_limit_s is not None and is_small(Path(full)):
            timeout_s = self._small_limit_s
        reply = self._ask("open", timeout_s, path=full, options=(options or self.options).to_dict())
        session, inputs, build_s = understand("open", read_opened, reply)
        self.building_s += build_s
        return OpenModel(full, inputs, build_s, session, self._generation)

    def store(self, feeds: Feeds) -> StoredFeeds:
        """Writes inputs once so that many models can be fed with them."""
        self._stored += 1
        path = self.scratch / f"feeds{self._stored}.npz"
        write_arrays(path, feeds)
        return StoredFeeds(path)

    def discard(self, feeds: StoredFeeds) -> None:
        """Removes stored inputs."""
        feeds.path.unlink(missing_ok=True)

    def feed(
        self, model: OpenModel, feeds: Feeds | StoredFeeds, *, timeout_s: float | None = None
    ) -> float:
        """Sets the inputs for all later timed runs of the model.

        Returns:
            Seconds that the engine took, which count as building: some engines build only when they
            know the shapes.
        """
        stored = feeds if isinstance(feeds, StoredFeeds) else self.store(feeds)
        try:
            reply = self._ask_of(model, "feed", timeout_s, feeds=str(stored.path))
            fed_s = understand("feed", read_seconds, reply)
            self.building_s += fed_s
            return fed_s
        finally:
            if stored is not feeds:
                self.discard(stored)

    def run(
        self, model: OpenModel, feeds: Feeds | StoredFeeds, *, timeout_s: float | None = None
    ) -> Outputs:
        """Runs the model once and returns its outputs by name."""
        stored = feeds if isinstance(feeds, StoredFeeds) else self.store(feeds)
        outputs = self.scratch / "outputs.npz"
        try:
            self._ask_of(model, "run", timeout_s, feeds=str(stored.path), outputs=str(outputs))
            return understand("run", read_arrays, outputs)
        finally:
            outputs.unlink(missing_ok=True)
            if stored is not feeds:
                self.discard(stored)

    def time(self, model: OpenModel, runs: int, *, timeout_s: float | None = None) -> list[float]:
        """Runs the model back to back on its feeds; returns unchecked milliseconds of each run."""
        reply = self._ask_of(model, "time", timeout_s, runs=runs)
        samples, spent_s, contended_s = understand("time", read_samples, reply)
        self.timing_s += spent_s
        self.contended_s += contended_s
        return samples

    def layers(
        self, model: OpenModel, runs: int = 10, *, timeout_s: float | None = None
    ) -> list[LayerTime]:
        """Returns the mean time of each node of the engine's graph, in order of execution."""
        try:
            reply = self._ask_of(model, "layers", timeout_s, runs=runs)
        except WorkerFailure as failure:
            self.deaths_by_layers += failure.kind in (FailureKind.CRASH, FailureKind.TIMEOUT)
            raise
        layers, spent_s = understand("layers", read_layers, reply)
        self.timing_s += spent_s
        return layers

    def release(self, model: OpenModel, *, timeout_s: float | None = None) -> None:
        """Closes a model; does nothing if its child is already gone."""
        if model.generation == self._generation and self._child is not None:
            self._ask("close", timeout_s, session=model.session)

    def measure(
        self,
        path: str | os.PathLike[str],
        feeds: Feeds | StoredFeeds,
        *,
        blocks: int = 3,
        runs: int = 12,
        drop: int = 2,
        options: SessionOptions | None = None,
        timeout_s: float | None = None,
    ) -> Measurement:
        """Times one model alone; failures are part of the result, nothing is raised.

        Args:
            path: The model file.
            feeds: Its inputs.
            blocks: Blocks of runs.
            runs: Runs per block that count.
            drop: Runs before them that don't.
            options: How to open the model.
            timeout_s: Limit for opening, and for each block.
        """
        model: OpenModel | None = None
        error: str | None = None
        samples: list[tuple[float, ...]] = []
        timing_s = self.timing_s
        try:
            model = self.open(path, options, timeout_s=timeout_s)
            self.feed(model, feeds, timeout_s=timeout_s)
            for _ in range(blocks):
                block = self.time(model, drop + runs, timeout_s=timeout_s)
                samples.append(tuple(block[drop:]))
        except WorkerFailure as failure:
            error = str(failure)
        if model is not None:
            with contextlib.suppress(WorkerFailure):
                self.release(model, timeout_s=timeout_s)
        build_s = 0.0 if model is None else model.build_s
        return Measurement(tuple(samples), error, build_s, self.timing_s - timing_s)

    def _ask_of(self, model: OpenModel, op: str, timeout_s: float | None, **arguments: Any) -> Any:
        if model.generation != self._generation or self._child is None:
            what = f"{model.path} is no longer open: the engine's process ended in between"
            raise WorkerFailure(what, FailureKind.LOST)
        return self._ask(op, timeout_s, session=model.session, **arguments)

    def _ask(self, op: str, timeout_s: float | None, **arguments: Any) -> Any:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        if self._longest_s is not None:
            limit_s = min(limit_s, self._longest_s)
        with self._lock:
            if self._child is None:
                self._child = ChildProcess(
                    self._engine, self._environment, self._log_path, self.memory_bytes
                )
                self._generation += 1
            start = time.monotonic()
            try:
                return self._child.request(op, limit_s, **arguments)
            except WorkerFailure as failure:
                if failure.kind is not FailureKind.ERROR:
                    self._child = None
                raise
            except BaseException:
                self._child.kill()
                self._child = None
                raise
            finally:
                self.waited_s += time.monotonic() - start


@contextlib.contextmanager
def opened(
    worker: Worker,
    path: Path | str,
    options: SessionOptions | None = None,
    *,
    timeout_s: float | None = None,
) -> Iterator[OpenModel]:
    """Open a model and release it on exit.

    Raises:
        WorkerFailure: If it can't be opened.
    """
    model = worker.open(path, options, timeout_s=timeout_s)
    try:
        yield model
    finally:
        with contextlib.suppress(WorkerFailure):
            worker.release(model)


# The first start of CUDA on a machine may take many seconds.
_PROBE_LIMIT_S = 120.0


@dataclass(frozen=True)
class ProbeResult:
    """The result of a probe.

    Attributes:
        info: The version and device; None if the engine doesn't answer.
        reason: Why it doesn't, in one line; empty if it does.
    """

    info: EngineInfo | None
    reason: str = ""


@functools.cache
def probe_engine(engine: str) -> ProbeResult:
    """Query an engine without options.

    Raises:
        EngineError: If it is not installed.
    """
    with Worker(engine, timeout_s=_PROBE_LIMIT_S) as worker:
        try:
            return ProbeResult(worker.info())
        except WorkerFailure as failure:
            return ProbeResult(None, failure.what.splitlines()[0])
