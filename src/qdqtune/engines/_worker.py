"""The parent's side of the worker: opens, runs and times models in a child process."""

from __future__ import annotations

import contextlib
import functools
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from qdqtune.engines import _registry as registry
from qdqtune.engines._entries import EngineEntry
from qdqtune.engines._hosts import Host, LocalHost
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._process import (
    FailureKind,
    WorkerFailure,
    read_layers,
    read_opened,
    read_samples,
    read_seconds,
)
from qdqtune.engines._worker_environment import (
    LOGS,
    OPENING,
    PLANS,
    SCRATCH,
    read_arrays,
    write_arrays,
)
from qdqtune.engines._worker_process import WorkerProcess
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._external_data import is_small
from qdqtune.records._measurement import EngineInfo, LayerTime, Measurement
from qdqtune.resources import current_limits

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs

__all__ = ["FailureKind", "OpenModel", "StoredFeeds", "Worker", "WorkerFailure"]

_T = TypeVar("_T")

# The first start of CUDA on a machine may take many seconds.
_PROBE_LIMIT_S = 120.0


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


@dataclass
class WorkerTotals:
    """The time that a worker has spent since it was created.

    Attributes:
        building_s: Seconds that the engine spent opening models, measured by itself.
        timing_s: Seconds that it spent in timed runs, measured by itself.
        contended_s: Total seconds that its threads waited for a core in timed runs.
        deaths_by_layers: Number of crashes and hangs on requests for layers.
    """

    building_s: float = 0.0
    timing_s: float = 0.0
    contended_s: float = 0.0
    deaths_by_layers: int = 0


class Worker:
    """An engine in a child process, under the resource limits in effect where it is created.

    Args:
        engine: Name of an engine in the registry, or ``module:Class`` for one under test.
        options: Default options for opening models.
        timeout_s: Default limit for each request; None for the user's limit, or else the engine's.
            No request may take longer than the user's limit.
        log_path: File for the engine's output, limited in size.
        scratch: Parent of its folder for inputs and outputs; None for the system's temporary
            folder.
        plans: Folder in which engines keep what they have built, for other workers; None to keep
            it as long as this one.
        opening: Index of this process among those of one comparison, from 0 on. A simulated machine
            varies with it, as openings differ on real machines.
        host: Where the child runs; by default on this machine.

    Attributes:
        engine: As passed.
        options: Default options for opening models.
        timeout_s: Default limit for each request.
        totals: The time it has spent so far.
        process: The child, which is started when it is needed.

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
        scratch: Path | None = None,
        plans: Path | None = None,
        opening: int = 0,
        host: Host | None = None,
    ) -> None:
        is_path = ":" in engine
        entry = EngineEntry(engine, "") if is_path else registry.entry(engine)
        host = host or LocalHost()
        worker_class = engine
        if not is_path:  # on another machine, its own installation counts
            worker_class = registry.worker_class(engine) if host.is_here else entry.worker_class
        limits = current_limits()
        set_s = timeout_s or limits.timeout_s
        self.engine = engine
        self.options = options or SessionOptions()
        self.timeout_s = set_s or entry.open_limit_s
        self.totals = WorkerTotals()
        self._small_limit_s = None if set_s else entry.small_limit_s
        self._longest_s = limits.timeout_s
        self._folder = TemporaryFolder(scratch)
        variables = {
            # Opening and closing hundreds of sessions must not fragment memory over many heaps.
            "MALLOC_ARENA_MAX": "1",
            SCRATCH: str(self.scratch),
            "TMPDIR": str(self.scratch),  # files that an engine leaves there are removed as well
            LOGS: str(log_path.parent.absolute()) if log_path is not None else "",
            OPENING: str(opening),
            PLANS: str(plans.absolute()) if plans is not None else "",
        }
        self.process = WorkerProcess(host, worker_class, variables, log_path, limits.memory_bytes)
        self._stored = 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def host(self) -> Host:
        """Where the child runs."""
        return self.process.host

    def close(self) -> None:
        """Ends the child and removes the scratch folder."""
        self.process.end()
        self._folder.cleanup()

    def restart(self, opening: int) -> None:
        """Ends the child; the next request starts a new one.

        Args:
            opening: Index of the new process among those of one comparison.
        """
        self.process.end()
        self.process.variables[OPENING] = str(opening)

    @property
    def scratch(self) -> Path:
        """Its temporary folder, which is removed on close."""
        return self._folder.path

    @property
    def pid(self) -> int | None:
        """Process id of the child; None while there is none."""
        return None if self.process.child is None else self.process.child.pid

    def info(
        self, options: SessionOptions | None = None, *, timeout_s: float | None = None
    ) -> EngineInfo:
        """Returns the engine, version and device in use."""
        chosen = options or self.options
        return self._ask("info", EngineInfo.from_untrusted, timeout_s, options=chosen.to_dict())

    def open(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        *,
        timeout_s: float | None = None,
    ) -> OpenModel:
        """Opens a model file."""
        full, chosen = os.path.abspath(path), options or self.options
        if timeout_s is None and self._small_limit_s is not None and is_small(Path(full)):
            timeout_s = self._small_limit_s
        session, inputs, build_s = self._ask(
            "open", read_opened, timeout_s, path=full, options=chosen.to_dict()
        )
        self.totals.building_s += build_s
        return OpenModel(full, inputs, build_s, session, self.process.generation)

    @contextlib.contextmanager
    def opened(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Iterator[OpenModel]:
        """Opens a model file, and releases it on exit."""
        model = self.open(path, options, timeout_s=timeout_s)
        try:
            yield model
        finally:
            with contextlib.suppress(WorkerFailure):
                self.release(model, timeout_s=timeout_s)

    def store(self, feeds: Feeds) -> StoredFeeds:
        """Writes inputs once so that many models can be fed with them."""
        self._stored += 1
        path = self.scratch / f"feeds{self._stored}.npz"
        write_arrays(path, feeds)
        return StoredFeeds(path)

    def discard(self, feeds: StoredFeeds) -> None:
        """Removes stored inputs."""
        feeds.path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def stored(self, feeds: Feeds | StoredFeeds) -> Iterator[StoredFeeds]:
        """Stores inputs for as long as the context lasts, unless they already are stored."""
        if isinstance(feeds, StoredFeeds):
            yield feeds
            return
        written = self.store(feeds)
        try:
            yield written
        finally:
            self.discard(written)

    def feed(
        self, model: OpenModel, feeds: Feeds | StoredFeeds, *, timeout_s: float | None = None
    ) -> float:
        """Sets the inputs for all later timed runs of the model.

        Returns:
            Seconds that the engine took, which count as building: some engines build only when they
            know the shapes.
        """
        with self.stored(feeds) as stored:
            fed_s = self._ask("feed", read_seconds, timeout_s, model, feeds=str(stored.path))
        self.totals.building_s += fed_s
        return fed_s

    def run(
        self, model: OpenModel, feeds: Feeds | StoredFeeds, *, timeout_s: float | None = None
    ) -> Outputs:
        """Runs the model once and returns its outputs by name."""
        outputs = self.scratch / "outputs.npz"

        def read(_: object) -> Outputs:
            return read_arrays(outputs)

        try:
            with self.stored(feeds) as stored:
                paths = {"feeds": str(stored.path), "outputs": str(outputs)}
                return self._ask("run", read, timeout_s, model, **paths)
        finally:
            outputs.unlink(missing_ok=True)

    def time(self, model: OpenModel, runs: int, *, timeout_s: float | None = None) -> list[float]:
        """Runs the model back to back on its feeds; returns unchecked milliseconds of each run."""
        samples, spent_s, contended_s = self._ask("time", read_samples, timeout_s, model, runs=runs)
        self.totals.timing_s += spent_s
        self.totals.contended_s += contended_s
        return samples

    def layers(
        self, model: OpenModel, runs: int = 10, *, timeout_s: float | None = None
    ) -> list[LayerTime]:
        """Returns the mean time of each node of the engine's graph, in order of execution."""
        try:
            layers, spent_s = self._ask("layers", read_layers, timeout_s, model, runs=runs)
        except WorkerFailure as failure:
            self.totals.deaths_by_layers += failure.kind in (FailureKind.CRASH, FailureKind.TIMEOUT)
            raise
        self.totals.timing_s += spent_s
        return layers

    def release(self, model: OpenModel, *, timeout_s: float | None = None) -> None:
        """Closes a model; does nothing if its child is already gone."""
        if self._holds(model):
            self._ask("close", lambda _: None, timeout_s, model)

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
        error: str | None = None
        samples: list[tuple[float, ...]] = []
        build_s, timing_s = 0.0, self.totals.timing_s
        try:
            with self.opened(path, options, timeout_s=timeout_s) as model:
                build_s = model.build_s
                self.feed(model, feeds, timeout_s=timeout_s)
                for _ in range(blocks):
                    block = self.time(model, drop + runs, timeout_s=timeout_s)
                    samples.append(tuple(block[drop:]))
        except WorkerFailure as failure:
            error = str(failure)
        return Measurement(tuple(samples), error, build_s, self.totals.timing_s - timing_s)

    def _holds(self, model: OpenModel) -> bool:
        return self.process.child is not None and model.generation == self.process.generation

    def _ask(
        self,
        op: str,
        read: Callable[[Any], _T],
        timeout_s: float | None,
        model: OpenModel | None = None,
        **arguments: Any,
    ) -> _T:
        """Make a request about a model or the engine, and return the parsed answer."""
        if model is not None:
            if not self._holds(model):
                what = f"{model.path} is no longer open: the engine's process ended in between"
                raise WorkerFailure(what, FailureKind.LOST)
            arguments["session"] = model.session
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        if self._longest_s is not None:
            limit_s = min(limit_s, self._longest_s)
        reply = self.process.request(op, limit_s, arguments)
        try:
            return read(reply)
        except (KeyError, TypeError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
            what = f"the engine's answer to '{op}' makes no sense: {error!s:.200}"
            raise WorkerFailure(what, FailureKind.ERROR) from None


@functools.cache
def probe_engine(engine: str) -> EngineInfo | WorkerFailure:
    """Query an engine without options; returns its version and device, or why it doesn't answer.

    Raises:
        EngineError: If it is not installed.
    """
    with Worker(engine, timeout_s=_PROBE_LIMIT_S) as worker:
        try:
            return worker.info()
        except WorkerFailure as failure:
            return failure
