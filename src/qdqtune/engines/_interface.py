"""Interfaces of an engine, and the clock of its timed runs.

Engines run inside the worker process; nothing here imports one.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from qdqtune.records._json_form import Record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qdqtune.records._measurement import EngineInfo, LayerTime

    Feeds = Mapping[str, npt.NDArray[Any]]
    """Input name to array."""
    Outputs = dict[str, npt.NDArray[np.generic]]
    """Output name to array."""

_COARSEST_STEP_NS = 20_000
_WATCHED_NS = 20_000_000


@dataclass(frozen=True)
class InputSpec:
    """The requirements of one model input.

    Attributes:
        name: Name of the input.
        dtype: Name of the numpy (or ml_dtypes) type, such as ``float32``; ``str`` for text.
        shape: Dimensions; a name or None where the model leaves one open.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...]


@dataclass(frozen=True)
class SessionOptions(Record):
    """How an engine should open a model.

    Attributes:
        threads: Threads per run; None is the engine's default.
        engine_options: The engine's own options, as strings.
        optimized_model_path: Where to write the optimized graph, if the engine can.
    """

    threads: int | None = None
    engine_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    optimized_model_path: str | None = None


class Session(Protocol):
    """A model opened in an engine."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        ...

    def set_feeds(self, feeds: Feeds) -> None:
        """Stores the inputs of all later timed runs where the engine needs them."""
        ...

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs."""
        ...

    def time_runs(self, runs: int) -> list[float]:
        """Runs back to back on the stored feeds; returns the milliseconds of each run.

        An engine that executes a whole run on one thread may return the CPU time of that thread,
        which excludes time taken by other processes.
        """
        ...

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per node of the engine's graph on the stored feeds, in execution order."""
        ...

    def close(self) -> None:
        """Releases everything the session holds."""
        ...


class Engine(Protocol):
    """Opens models. Constructed without arguments inside the worker."""

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the engine, version and device that would run a model with these options."""
        ...

    def open(self, path: str, options: SessionOptions) -> Session:
        """Opens the model file; raises any exception on failure."""
        ...


@runtime_checkable
class VirtualTime(Protocol):
    """Additional interface of an engine that does not wait for the time that it reports."""

    def clock_s(self) -> float:
        """Seconds on the engine's own clock, used for build and timing durations."""
        ...


@functools.cache
def thread_clock_is_fine() -> bool:
    """Check the resolution of the thread clock: in some sandboxes it moves in steps of 10 ms."""
    end = time.perf_counter_ns() + _WATCHED_NS
    first = last = time.thread_time_ns()
    steps = 0
    while time.perf_counter_ns() < end:
        now = time.thread_time_ns()
        if now != last:
            steps += 1
            last = now
    return steps > 0 and (last - first) / steps <= _COARSEST_STEP_NS


class RunClock:
    """Times runs by the calling thread's CPU time, or by wall time.

    Args:
        on_one_thread: Whether whole runs execute on the calling thread.

    Attributes:
        now_ns: The clock in use.
    """

    def __init__(self, *, on_one_thread: bool) -> None:
        self.now_ns: Callable[[], int] = time.perf_counter_ns
        if on_one_thread and thread_clock_is_fine():
            self.now_ns = time.thread_time_ns

    def use_wall_time(self) -> None:
        """Switch to wall time."""
        self.now_ns = time.perf_counter_ns

    def samples_ms(self, run: Callable[[], object], runs: int) -> list[float]:
        """Return the milliseconds of each run, remeasured if too short for the thread clock."""
        samples = self._timed(run, runs)
        if min(samples, default=1.0) <= 0.0:
            self.use_wall_time()
            samples = self._timed(run, runs)
        return samples

    def _timed(self, run: Callable[[], object], runs: int) -> list[float]:
        now_ns = self.now_ns
        samples: list[float] = []
        for _ in range(runs):
            start = now_ns()
            run()
            samples.append((now_ns() - start) / 1e6)
        return samples
