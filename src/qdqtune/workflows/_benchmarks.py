"""Benchmarks that time one model and return milliseconds, and the one shared by a process."""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.config import EngineConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._options import EngineFlags, ShapeArguments
from qdqtune.engines._worker import Worker
from qdqtune.graph._atomic_files import TemporaryFolder, open_to_append, writing
from qdqtune.graph._external_data import external_files
from qdqtune.graph._files import load_model, write_text
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import input_dims
from qdqtune.graph._measured_shapes import measured_shapes
from qdqtune.graph._shapes import infer_shapes
from qdqtune.records._errors import EngineError, ModelError, OutputError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records._measurement import LayerTime, Measurement
from qdqtune.workflows.tuning._preflight import layers_told

_logger = logging.getLogger(__name__)

_NOTHING_SAID = InputRequest()
_RUNS_PER_BLOCK = 10
_MOST_BLOCKS = 10

DEFAULT_WARMUP_RUNS = 5
DEFAULT_TIMING_RUNS = 20

Model = str | os.PathLike[str] | bytes


class EngineImportError(EngineError, ImportError):
    """The Python package of an engine is missing or unusable."""


class Benchmark(ABC):
    """Base class of benchmarks that time one model at a time."""

    @abstractmethod
    def run(self, path_or_bytes: Model, log_file: str | os.PathLike[str] | None = None) -> float:
        """Time a model.

        Args:
            path_or_bytes: The file, or its content.
            log_file: The log to append to.

        Returns:
            The median in milliseconds; infinite if the model can't be run.
        """

    def __call__(
        self, path_or_bytes: Model, log_file: str | os.PathLike[str] | None = None
    ) -> float:
        """The same as `run`."""
        return self.run(path_or_bytes, log_file)

    def close(self) -> None:  # noqa: B027 - not every benchmark holds something
        """Release its resources."""

    def __enter__(self) -> Benchmark:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EngineBenchmark(Benchmark):
    """Times models on an engine, in a separate process, with random inputs.

    Args:
        engine: An engine's name; ``auto`` is the first that can measure here.
        threads: Threads per run; None is the engine's default.
        engine_options: The engine's own options.
        warmup_runs: Untimed runs.
        timing_runs: Timed runs; they are grouped in blocks, and the result is the median of the
            blocks' medians.
        inputs: Shapes, ranges and seed of the inputs.

    Attributes:
        engine: The engine's name.
        threads: As given.
        engine_options: As given.
        warmup_runs: As given.
        timing_runs: As given.
        inputs: As given.

    Raises:
        EngineError: If the engine can't measure here.
        UsageError: If there is no such engine, or a number is invalid.
    """

    def __init__(
        self,
        engine: str = registry.AUTO,
        *,
        threads: int | None = None,
        engine_options: Mapping[str, str] | None = None,
        warmup_runs: int = DEFAULT_WARMUP_RUNS,
        timing_runs: int = DEFAULT_TIMING_RUNS,
        inputs: ShapesOrRequest = _NOTHING_SAID,
    ) -> None:
        EngineConfig(engine=engine, engine_options=engine_options, threads=threads)
        if timing_runs < 1 or warmup_runs < 0:
            raise UsageError(
                f"{timing_runs} timed runs after {warmup_runs} others can't be made.",
                "timing_runs must be at least 1, and warmup_runs at least 0.",
            )
        self.engine = registry.resolve(engine, engine_options)
        self.threads = threads
        self.engine_options = dict(engine_options or {})
        self.warmup_runs = warmup_runs
        self.timing_runs = timing_runs
        self.inputs = request_of(inputs)
        self._shapes: dict[str, dict[str, tuple[int, ...]]] = {}
        self._worker: Worker | None = None

    def run(
        self,
        path_or_bytes: Model,
        log_file: str | os.PathLike[str] | None = None,
        export_profile_path: str | os.PathLike[str] | None = None,
    ) -> float:
        """Time a model; see `Benchmark.run`.

        Args:
            path_or_bytes: The file, or its content.
            log_file: The log to append to.
            export_profile_path: Where to write the time of each layer; if the engine doesn't report
                it, no file is written, and the log says so.
        """
        try:
            with _as_file(path_or_bytes) as path:
                measured = self.measure(path)
                if measured.ok and export_profile_path is not None:
                    self._export_profile(path, Path(export_profile_path))
        except (QdqtuneError, OSError) as error:
            measured = Measurement(error=str(error))
        if not measured.ok:
            _logger.warning("the model could not be timed: %s", measured.error)
        if log_file is not None:
            self._log(Path(log_file), path_or_bytes, measured)
        return measured.latency_ms

    def measure(self, path: str | os.PathLike[str]) -> Measurement:
        """Time a model file.

        Returns:
            The samples, or why the engine returned none.

        Raises:
            QdqtuneError: If the file is not a model, or random inputs can't be generated for it.
        """
        if self._worker is None:
            self._worker = Worker(self.engine, SessionOptions(self.threads, self.engine_options))
        blocks = min(_MOST_BLOCKS, max(1, self.timing_runs // _RUNS_PER_BLOCK))
        return self._worker.measure(
            path,
            self._feeds(path),
            blocks=blocks,
            runs=math.ceil(self.timing_runs / blocks),
            drop=math.ceil(self.warmup_runs / blocks),
        )

    def _export_profile(self, path: Path, target: Path) -> None:
        assert self._worker is not None
        feeds = self._worker.store(self._feeds(path))
        layers = layers_told(self._worker, path, feeds, self.timing_runs)
        if layers:
            _write_profile(layers, self.timing_runs, target)
        else:
            _logger.warning("%s reports no times of layers: there is no profile", self.engine)

    def close(self) -> None:
        """Stop the engine's process; another run starts a new one."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()

    def _feeds(self, path: str | os.PathLike[str]) -> Feeds:
        model = load_model(path)
        infer_shapes(model)
        declared = str(input_dims(model))
        if declared not in self._shapes:  # once, because it warns about dynamic dims
            self._shapes[declared] = measured_shapes(model, self.inputs)
        request = replace(self.inputs, shapes=self._shapes[declared], dims={})
        return next(random_inputs(GraphIndex(model), 1, request))

    def _log(self, path: Path, model: Model, measured: Measurement) -> None:
        """Append to a log; failure to write it does not affect the measurement."""
        what = f"{len(model)} bytes" if isinstance(model, bytes) else os.fspath(model)
        lines = [f"{self.engine}: {what}, opened in {measured.build_s:.3f} s"]
        if measured.ok:
            medians = ", ".join(f"{median:.4f}" for median in measured.block_medians_ms)
            lines.append(f"median {measured.latency_ms:.4f} ms; of each block: {medians}")
        else:
            lines.append(f"failed: {measured.error}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_to_append(path) as log:
                log.write(("\n".join(lines) + "\n").encode())
        except (OSError, OutputError) as error:
            _logger.warning("the log %s can't be written: %s", path, error)


class TensorRTPyBenchmark(EngineBenchmark):
    """Times models with the Python package of the engine in its name.

    Args:
        timing_cache_file: The engine's timing cache.
        warmup_runs: Untimed runs.
        timing_runs: Timed runs.
        plugin_libraries: Libraries with custom ops to load.
        inputs: Shapes, ranges and seed of the inputs.

    Raises:
        EngineImportError: If the engine can't measure here; it is also an ImportError.
    """

    def __init__(
        self,
        timing_cache_file: str | os.PathLike[str] | None = None,
        warmup_runs: int = DEFAULT_WARMUP_RUNS,
        timing_runs: int = DEFAULT_TIMING_RUNS,
        plugin_libraries: Sequence[str] | None = None,
        inputs: ShapesOrRequest = _NOTHING_SAID,
    ) -> None:
        flags = flags_of(timing_cache_file, plugin_libraries)
        try:
            super().__init__(
                registry.GUIDES_MODULE,
                engine_options=flags.options_of(registry.GUIDES_MODULE, {}),
                warmup_runs=warmup_runs,
                timing_runs=timing_runs,
                inputs=inputs,
            )
        except EngineError as error:
            raise EngineImportError(error.what, error.hint) from None
        self.timing_cache_file = timing_cache_file
        self.plugin_libraries = list(plugin_libraries or ())


class TrtExecBenchmark(EngineBenchmark):
    """Times models with the engine's own program.

    Args:
        timing_cache_file: The engine's timing cache.
        warmup_runs: Untimed runs.
        timing_runs: Timed runs.
        plugin_libraries: Libraries with custom ops to load.
        trtexec_path: The program.
        trtexec_args: Further arguments; those about shapes set the shapes that models run at.
        inputs: Shapes, ranges and seed of the inputs, unless those arguments set shapes.

    Raises:
        EngineError: If the program can't measure here.
    """

    def __init__(
        self,
        timing_cache_file: str | os.PathLike[str] | None = None,
        warmup_runs: int = DEFAULT_WARMUP_RUNS,
        timing_runs: int = 10,
        plugin_libraries: Sequence[str] | None = None,
        trtexec_path: str = registry.GUIDES_PROGRAM,
        trtexec_args: Sequence[str] | None = None,
        inputs: ShapesOrRequest = _NOTHING_SAID,
    ) -> None:
        told = ShapeArguments.found_in(trtexec_args or ())
        flags = replace(
            flags_of(timing_cache_file, plugin_libraries),
            arguments=tuple(told.others),
            program="" if trtexec_path == registry.GUIDES_PROGRAM else os.fspath(trtexec_path),
        )
        super().__init__(
            registry.GUIDES_PROGRAM,
            engine_options=flags.options_of(registry.GUIDES_PROGRAM, told.as_options()),
            warmup_runs=warmup_runs,
            timing_runs=timing_runs,
            inputs=InputRequest.from_text(told.usual) if told.usual else inputs,
        )
        self.timing_cache_file = timing_cache_file
        self.plugin_libraries = list(plugin_libraries or ())
        self.trtexec_path = trtexec_path
        self.trtexec_args = list(trtexec_args or ())


def flags_of(
    timing_cache_file: str | os.PathLike[str] | None, plugin_libraries: Sequence[str] | None
) -> EngineFlags:
    """Return the flags for a timing cache and for libraries with custom ops."""
    cache = "" if timing_cache_file is None else os.fspath(timing_cache_file)
    return EngineFlags(cache, tuple(map(os.fspath, plugin_libraries or ())))


@contextmanager
def _as_file(model: Model) -> Iterator[Path]:
    """Provide a model as a file; bytes are written to a private temporary folder.

    Raises:
        ModelError: If bytes refer to weights in other files.
    """
    if not isinstance(model, bytes):
        yield Path(model)
        return
    with TemporaryFolder() as folder:
        path = folder / "model.onnx"
        with writing(path):
            path.write_bytes(model)
        if external_files(path):
            raise ModelError(
                "The bytes of a model whose weights lie in other files can't be timed.",
                "Write it to a file beside its weights, and give the file's path.",
            )
        yield path


def _write_profile(layers: Sequence[LayerTime], runs: int, target: Path) -> None:
    """Write a profile: the number of runs, then one entry per layer in order of execution.

    Args:
        layers: The layers, with milliseconds per run.
        runs: The number of runs that the times come from.
        target: The file; its folder is created.
    """
    total = sum(layer.ms for layer in layers) or 1.0
    entries = [
        {
            "name": layer.name,
            "timeMs": layer.ms * runs,
            "averageMs": layer.ms,
            "medianMs": layer.ms,
            "percentage": 100 * layer.ms / total,
        }
        for layer in layers
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps([{"count": runs}, *entries], indent=1) + "\n"
    write_text(target, text, force=True)


@dataclass
class _Current:
    """The benchmark of this process.

    Attributes:
        benchmark: The benchmark; None if there is none yet, or it could not be created.
        failure: Why it could not be created.
    """

    benchmark: EngineBenchmark | None = None
    failure: str = ""

    def replace(self, benchmark: EngineBenchmark | None, failure: str = "") -> None:
        """Set another benchmark and close the previous one."""
        if self.benchmark is not None:
            self.benchmark.close()
        self.benchmark, self.failure = benchmark, failure


_CURRENT = _Current()
atexit.register(_CURRENT.replace, None)


def init_benchmark_instance(
    use_trtexec: bool = False,
    plugin_libraries: Sequence[str] | None = None,
    timing_cache_file: str | os.PathLike[str] | None = None,
    warmup_runs: int = DEFAULT_WARMUP_RUNS,
    timing_runs: int = DEFAULT_TIMING_RUNS,
    trtexec_args: Sequence[str] | None = None,
    *,
    engine: str = registry.AUTO,
    threads: int | None = None,
    inputs: ShapesOrRequest = _NOTHING_SAID,
) -> Benchmark | None:
    """Set how `benchmark_onnx_model` and the autotuning workflow measure in this process.

    Args:
        use_trtexec: Whether to measure with that program instead of `engine`.
        plugin_libraries: Libraries with custom ops, for engines that support them.
        timing_cache_file: The engine's timing cache, if it has one.
        warmup_runs: Untimed runs.
        timing_runs: Timed runs.
        trtexec_args: Further arguments for the program.
        engine: The engine that measures; ``auto`` is the first that can measure here.
        threads: Threads per run; None is the engine's default.
        inputs: Shapes, ranges and seed of the inputs; a model with dynamic dims is measured only at
            given sizes. Shapes in `trtexec_args` take precedence.

    Returns:
        The benchmark; None if it can't be created, with the reason in the log.
    """
    benchmark: EngineBenchmark
    try:
        if use_trtexec:
            benchmark = TrtExecBenchmark(
                timing_cache_file, warmup_runs, timing_runs, plugin_libraries,
                trtexec_args=trtexec_args, inputs=inputs,
            )  # fmt: skip
        else:
            if trtexec_args:
                _logger.warning("trtexec_args are not used without use_trtexec")
            name = registry.resolve(engine)
            flags = flags_of(timing_cache_file, plugin_libraries)
            benchmark = EngineBenchmark(
                name, threads=threads, engine_options=flags.options_of(name, {}),
                warmup_runs=warmup_runs, timing_runs=timing_runs, inputs=inputs,
            )  # fmt: skip
    except Exception as error:  # whatever the error, callers check the return value
        _logger.error("there is no benchmark: %s", error)
        _CURRENT.replace(None, str(error))
        return None
    _CURRENT.replace(benchmark)
    return benchmark


def benchmark_onnx_model(
    model_path: Model,
    log_file: str | os.PathLike[str] | None = None,
    flush_timing_cache: bool = False,
    export_profile_path: str | os.PathLike[str] | None = None,
) -> float:
    """Time a model with the benchmark of this process; create one if there is none yet.

    Args:
        model_path: The file, or its content.
        log_file: The log to append to.
        flush_timing_cache: No effect: engines write their timing cache after every build.
        export_profile_path: Where to write the time of each layer, if the engine reports it.

    Returns:
        The median in milliseconds; infinite if the model can't be measured. Never raises.
    """
    del flush_timing_cache
    try:
        benchmark = current_benchmark()
        if benchmark is None:
            return math.inf
        return benchmark.run(model_path, log_file, export_profile_path)
    except Exception as error:  # an error must not end a loop over hundreds of candidates
        _logger.error("the model could not be timed: %s", error)
        return math.inf


def current_benchmark() -> EngineBenchmark | None:
    """Return the benchmark of this process, creating it if needed; None if the last one failed."""
    if _CURRENT.benchmark is None and not _CURRENT.failure:
        init_benchmark_instance()
    if _CURRENT.benchmark is None:
        _logger.error("there is no benchmark: %s", _CURRENT.failure)
    return _CURRENT.benchmark
