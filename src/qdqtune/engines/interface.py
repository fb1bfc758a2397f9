"""The roles an engine plays. Engines run inside the worker process; nothing here imports one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from qdqtune.records.measurement import EngineInfo, LayerTime

    Feeds = Mapping[str, npt.NDArray[Any]]
    """Input name to array."""
    Outputs = dict[str, npt.NDArray[np.generic]]
    """Output name to array."""


@dataclass(frozen=True)
class InputSpec:
    """What a model wants on one input.

    Attributes:
        name: Name of the input.
        dtype: Name of the numpy (or ml_dtypes) type, such as ``float32``; ``str`` for text.
        shape: Dimensions; a name or None where the model leaves it open.
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
        optimized_model_path: Where to write the graph the engine really runs, if it can.
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
    """A model that is open in an engine."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What the model wants."""
        ...

    def set_feeds(self, feeds: Feeds) -> None:
        """Keeps the inputs of all later timed runs ready where the engine wants them."""
        ...

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs."""
        ...

    def time_runs(self, runs: int) -> list[float]:
        """Runs back to back on the kept feeds; milliseconds of each run.

        An engine that does the whole run on one thread may give the CPU time of that thread, which
        leaves out what other processes take.
        """
        ...

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per node of the engine's graph on the kept feeds, in order of execution."""
        ...

    def close(self) -> None:
        """Gives back everything the session holds."""
        ...


class Engine(Protocol):
    """Opens models. Made without arguments inside the worker."""

    def info(self, options: SessionOptions) -> EngineInfo:
        """Says which engine, version and device would run a model with these options."""
        ...

    def open(self, path: str, options: SessionOptions) -> Session:
        """Opens the model file; whatever goes wrong is raised as any exception."""
        ...


@runtime_checkable
class VirtualTime(Protocol):
    """What an engine has beside the rest if it doesn't wait for the time that it reports."""

    def clock_s(self) -> float:
        """Seconds on the engine's own clock, by which building and timing are told."""
        ...
