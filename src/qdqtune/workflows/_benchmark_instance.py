"""A process-wide benchmark, as the autotuning guides use it.

It is built on the objects of `qdqtune.workflows._benchmarks`; qdqtune's own code uses those.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtune.engines import _registry as registry
from qdqtune.records._inputs import InputRequest, ShapesOrRequest
from qdqtune.workflows._benchmarks import (
    DEFAULT_TIMING_RUNS,
    DEFAULT_WARMUP_RUNS,
    Benchmark,
    EngineBenchmark,
    Model,
    TrtExecBenchmark,
    flags_of,
)

_logger = logging.getLogger(__name__)

_NOTHING_SAID = InputRequest()


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
