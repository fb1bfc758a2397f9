"""What is under test, and the bench it stands on: one worker and one folder of models."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import pytest

from qdqtune import zoo
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import FailureKind, OpenModel, Worker, WorkerFailure
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records.measurement import FLOAT32
from qdqtune.testing.models import TOWER_LAYERS, tower

if TYPE_CHECKING:
    from qdqtune.engines.interface import Feeds

_ONE_THREAD = SessionOptions(threads=1)
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class FloatPromise:
    """What a float type allows to promise, as signal-to-noise ratios.

    Attributes:
        models_db: How near the outputs of whole models come to ONNX's reference.
        op_db: How near those of single ops do.
        epsilon: The largest relative error of rounding to it.
    """

    models_db: float
    op_db: float
    epsilon: float


FLOAT_PROMISES = {
    FLOAT32: FloatPromise(80.0, 80.0, 2.0**-24),
    "tf32": FloatPromise(25.0, 50.0, 2.0**-11),
    "float16": FloatPromise(25.0, 50.0, 2.0**-11),
    "bfloat16": FloatPromise(15.0, 45.0, 2.0**-9),
}
"""By `EngineInfo.float_type`. Seen: zoo models 100 dB and more in float32, 18 and more in bfloat16;
single ops 130 and 52."""


@dataclass(frozen=True)
class EngineUnderTest:
    """An engine, and what it promises beyond that which every engine does.

    Attributes:
        name: Its name in the registry, or `module:Class`.
        options: How its models are opened. One thread gives the steadiest times; an engine that
            takes no number of threads is tried without.
        dialect: The dialect in which it wants Q/DQ written.
        quant_types: Those of the dialect's quant types that it runs; none named are all.
        runs: Whether models can be run here; False if they can only be opened, as where there is
            no GPU. What needs runs is skipped then, after models were opened and fed.
        program: Whether it starts a program for every request: most of the time that a request
            takes is no run then.
        measures: Whether its times are measured; False if it makes them up.
        layers: Whether `layer_times` tells the layers.
        integer_layers: Whether a quantized op shows as a layer that computes in integers.
        architectures: The zoo models that it runs.
        float_db: How near its float outputs come to ONNX's reference, as a signal-to-noise ratio;
            None is what the type allows in which it says that it computes, see `FLOAT_PROMISES`.
        steps: How many quantization steps a quantized result may be off.
        other_options: Options with which it is another engine to whoever compares times: values
            that are neither defaults nor in `options`.
        environment: Variables for its process, such as PYTHONPATH.
    """

    name: str
    options: SessionOptions = _ONE_THREAD
    dialect: str = "onnxruntime"
    quant_types: tuple[str, ...] = ()
    runs: bool = True
    program: bool = False
    measures: bool = True
    layers: bool = True
    integer_layers: bool = True
    architectures: tuple[str, ...] = zoo.ARCHITECTURES
    float_db: float | None = None
    steps: int = 1
    other_options: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def promised_types(self) -> tuple[str, ...]:
        """The quant types that it runs."""
        return self.quant_types or tuple(dialect_named(self.dialect).formats)


class Bench:
    """An engine in a worker, and the models that it is tried on.

    Args:
        engine: The engine.
        folder: Where models are written, each once.

    Attributes:
        engine: The engine.
        folder: The folder.
        worker: The worker, shared by all tests of a class; what a test opens it closes.
    """

    def __init__(self, engine: EngineUnderTest, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.worker = Worker(
            engine.name, engine.options, timeout_s=_TIMEOUT_S, environment=engine.environment
        )

    @functools.cached_property
    def promise(self) -> FloatPromise:
        """How exact floats are, by what was said of the engine, or else by what it says itself."""
        told = self.worker.info().float_type or FLOAT32
        assert told in FLOAT_PROMISES, (
            f"`info().float_type` is {told!r}; it is one of {', '.join(FLOAT_PROMISES)}, or empty"
        )
        found, said = FLOAT_PROMISES[told], self.engine.float_db
        return found if said is None else replace(found, models_db=said, op_db=said)

    def needs_runs(self) -> None:
        """Skips the test if models can't be run here."""
        if not self.engine.runs:
            pytest.skip(f"{self.engine.name} opens models, but can't run them here")

    def close(self) -> None:
        """Ends the engine's process."""
        self.worker.close()

    def write(self, name: str, model: onnx.ModelProto) -> Path:
        """Writes a model unless it is there already."""
        path = self.folder / f"{name}.onnx"
        if not path.exists():
            onnx.save(model, path)
        return path

    def tower(self, layers: int = TOWER_LAYERS) -> Path:
        """Writes a tower of products, see `qdqtune.testing.models.tower`."""
        return self.write(f"tower of {layers}", tower(layers))

    def subfolder(self, name: str) -> Path:
        """Makes a folder in the folder."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    @contextlib.contextmanager
    def opened(
        self,
        path: str | os.PathLike[str],
        options: SessionOptions | None = None,
        feeds: Feeds | None = None,
    ) -> Iterator[OpenModel]:
        """A model, open and fed for as long as the context lasts."""
        model = self.worker.open(path, options)
        try:
            if feeds is not None:
                self.worker.feed(model, feeds)
            yield model
        finally:
            with contextlib.suppress(WorkerFailure):
                self.worker.release(model)

    def refusal(self, request: Callable[[], Any], what: str) -> WorkerFailure:
        """Makes a request that the engine must refuse with an exception, and returns the failure.

        Args:
            request: The request.
            what: What is wrong with it, for the message if nothing is refused.
        """
        self.worker.info()
        pid = self.worker.pid
        caught: WorkerFailure | None = None
        try:
            request()
        except WorkerFailure as failure:
            caught = failure
        assert caught is not None, (
            f"{what}: nothing was raised. A request that can't be answered rightly must raise an "
            "exception, or else its garbage is taken for a result."
        )
        assert caught.kind is FailureKind.ERROR, (
            f"{what}: the engine should have raised an exception, but its process ended "
            f"({caught.kind.value}). Check what the native library is given before it is called. "
            f"{caught}"
        )
        assert self.worker.pid == pid, f"{what}: the engine's process should live on"
        return caught
