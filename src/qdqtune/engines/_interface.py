"""Interfaces of an engine. Engines run inside the worker process; nothing here imports one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qdqtune.records._measurement import EngineInfo, LayerTime

    Feeds = Mapping[str, npt.NDArray[Any]]
    """Input name to array."""
    Outputs = dict[str, npt.NDArray[np.generic]]
    """Output name to array."""


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
class SessionOptions:
    """How an engine should open a model.

    Attributes:
        threads: Threads per run; None is the engine's default.
        engine_options: The engine's own options, as strings.
        optimized_model_path: Where to write the optimized graph, if the engine can.
    """

    threads: int | None = None
    engine_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    optimized_model_path: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        path = self.optimized_model_path
        return {
            "threads": self.threads,
            "engine_options": dict(self.engine_options),
            "optimized_model_path": None if path is None else os.fspath(path),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> SessionOptions:
        """Reads the JSON form."""
        return cls(**value)


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
