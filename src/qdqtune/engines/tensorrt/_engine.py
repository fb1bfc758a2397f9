"""TensorRT and TensorRT-RTX as engines, and a model open in them. Run in the worker.

The parent never imports this module.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._signature import read_signature
from qdqtune.engines._worker_environment import log_of
from qdqtune.engines.tensorrt._builder import (
    BuildError,
    Library,
    PlanBuilder,
    ShapesMissing,
    telling,
)
from qdqtune.engines.tensorrt._execution import (
    Cuda,
    CudaError,
    Execution,
    ExecutionError,
    make_profiler,
)
from qdqtune.engines.tensorrt._files import (
    NO_CACHE,
    TimingCacheFile,
    default_path,
    library_stamp,
    plan_key,
    plans_of,
)
from qdqtune.engines.tensorrt._layer_info import parse_layer_info
from qdqtune.engines.tensorrt._layer_naming import layer_times_of
from qdqtune.engines.tensorrt._settings import (
    Settings,
    ShapeRange,
    float_type_of,
    settings_of,
    widened,
)
from qdqtune.graph._atomic_files import writing
from qdqtune.records._errors import OutputError
from qdqtune.records._measurement import EngineInfo, LayerTime
from qdqtune.records._untrusted_files import parse_json

if TYPE_CHECKING:
    from qdqtune.engines._interface import Feeds, Outputs


_PROFILE_WARMUP_RUNS = 2

# The build target where there is no GPU: Ada, the oldest with float8.
_WITHOUT_GPU = "sm89"
# Options that determine where a built engine comes from, but not its content.
_NOT_BUILT_IN = (
    "plan_cache", "timing_cache", "cuda_graph", "min_shapes", "opt_shapes", "max_shapes",
)  # fmt: skip


class TensorRtSession:
    """An open model.

    Args:
        engine: The engine that builds and runs it.
        settings: How to build and run it.
        path: The model file.
        layers_path: Where to write its layer information; None to write nothing.
    """

    def __init__(
        self, engine: TensorRtEngine, settings: Settings, path: str, layers_path: str | None
    ) -> None:
        self._path = path
        self._settings = settings
        self._layers_path = layers_path
        self._signature = read_signature(path)
        self._tensorrt = engine
        self._builder = engine.builder_of(settings)
        self._shapes: dict[str, ShapeRange] = {}
        self._values: dict[str, ShapeRange] = {}
        self._layer_text = ""
        self._engine: Any = None
        self._timed: Execution | None = None
        self._feeds: Feeds | None = None
        requested = settings.shapes
        requested.check_names(self._signature.dims)
        ranges = {name: requested.range_of(name, None) for name in self._signature.open_inputs}
        if all(ranges.values()):
            self._shapes = {name: each for name, each in ranges.items() if each is not None}
            try:
                self._build()
            except ShapesMissing:
                return  # input values determine shapes: wait for the first feeds

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The model's inputs."""
        return self._signature.inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Copies the inputs of timed runs to the GPU; builds if their shapes need a new engine."""
        self._feeds = None
        self._fit(feeds)
        self._feeds = feeds
        self._forget_runs()
        if self._cuda is not None:  # layers can be listed without
            self._execution_of(feeds)

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs."""
        self._fit(feeds)
        with contextlib.closing(self._new_execution(feeds)) as execution:
            execution.run()
            return execution.outputs(self._signature.outputs)

    def time_runs(self, runs: int) -> list[float]:
        """Runs back to back on the stored feeds; returns milliseconds between events on the GPU."""
        return self._execution_of(self._kept_feeds()).time(runs)

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per layer; without a GPU, the layers with 0 ms each."""
        feeds, layers = self._kept_feeds(), parse_layer_info(self._layer_text)
        profile = self._profile(feeds, runs) if self._cuda is not None else []
        return layer_times_of(self._path, layers, profile)

    def close(self) -> None:
        """Drops the engine and its memory."""
        self._forget_runs()
        self._engine = None

    @property
    def _cuda(self) -> Cuda | None:
        return self._tensorrt.cuda_of(self._settings.device)

    def _kept_feeds(self) -> Feeds:
        if self._feeds is None:
            raise ValueError("the model was given no feeds to run on")
        return self._feeds

    def _execution_of(self, feeds: Feeds) -> Execution:
        """Return the execution to time; recreated if a run on other shapes replaced the engine."""
        if self._timed is None:
            self._timed = self._new_execution(feeds)
            if self._settings.cuda_graph:
                self._timed.capture()
        return self._timed

    def _forget_runs(self) -> None:
        if self._timed is not None:
            self._timed.close()
            self._timed = None

    def _fit(self, feeds: Feeds) -> None:
        """Make sure that there is an engine for inputs with these shapes and values."""
        self._signature.check_feeds(feeds)
        wanted = {name: tuple(feeds[name].shape) for name in self._signature.open_inputs}
        fits = all(name in self._shapes and self._shapes[name].has(s) for name, s in wanted.items())
        values = {name: tuple(map(int, feeds[name].flat)) for name in self._values}
        fits &= all(self._values[name].has(value) for name, value in values.items())
        if fits and (self._engine is not None or self._layer_text):
            return
        before = self._shapes, self._values
        self._shapes = widened(self._settings.shapes, wanted, self._shapes)
        if self._feeds is not None:  # choose kernels for the shapes that are timed
            timed = {name: tuple(self._feeds[name].shape) for name in wanted}
            self._shapes = {name: self._shapes[name].with_usual(timed[name]) for name in wanted}
        self._values = {name: _grown(self._values[name], value) for name, value in values.items()}
        try:
            self._build_for(feeds)
        except BaseException:
            self._shapes, self._values = before
            raise

    def _build_for(self, feeds: Feeds) -> None:
        try:
            self._build()
        except ShapesMissing as missing:
            found = {name: tuple(map(int, feeds[name].flat)) for name in missing.names}
            self._values = {name: ShapeRange(v, v, v) for name, v in found.items()}
            self._build()

    def _build(self) -> None:
        tensorrt, can_run = self._tensorrt, self._cuda is not None
        ranges = [f"{k}={v}" for k, v in sorted({**self._shapes, **self._values}.items())]
        key = plan_key(self._path, [*tensorrt.built_with(self._settings), *ranges])
        plans = plans_of(self._settings.plan_cache)
        kept = plans.find(key) if can_run else None
        try:
            with tensorrt.library.log.about(log_of(self._path, tensorrt.name)):
                if kept is None or not self._take_kept(kept):
                    low_types = self._signature.low_types
                    plan = self._builder.build(self._path, low_types, self._shapes, self._values)
                    if can_run:
                        # If there is no space, it is simply built again next time.
                        with contextlib.suppress(OSError, OutputError):
                            plans.keep(key, plan)
                    self._take(plan)
        except BuildError as error:
            raise BuildError(f"{os.path.basename(self._path)}: {error}") from None
        if self._layers_path is not None:
            with writing(Path(self._layers_path)):
                Path(self._layers_path).write_text(_strict(self._layer_text), encoding="utf-8")

    def _take(self, plan: bytes) -> None:
        library = self._tensorrt.library
        self._forget_runs()
        self._layer_text = library.log.layer_list
        if self._cuda is None:
            return
        self._engine = self._tensorrt.runtime().deserialize_cuda_engine(plan)
        if self._engine is None:
            raise BuildError(telling(library.log.errors) or "the built engine can't be loaded")
        inspector = self._engine.create_engine_inspector()
        form = library.api.LayerInformationFormat.JSON
        self._layer_text = inspector.get_engine_information(form)

    def _take_kept(self, path: Path) -> bool:
        try:
            self._take(path.read_bytes())
        except (BuildError, OSError):  # it is broken, or another process just removed it
            self._tensorrt.library.log.errors = []
            return False
        return True

    def _new_execution(self, feeds: Feeds, profiler: Any = None) -> Execution:
        if self._cuda is None:
            raise ExecutionError(f"models can't be run here: {self._tensorrt.why_no_gpu}")
        return Execution(self._tensorrt.library, self._cuda, self._engine, feeds, profiler)

    def _profile(self, feeds: Feeds, runs: int) -> list[tuple[str, float]]:
        timed = self._execution_of(feeds)
        profiler = make_profiler(self._tensorrt.library.api)
        with contextlib.closing(self._new_execution(feeds, profiler)) as execution:
            execution.profile(_PROFILE_WARMUP_RUNS, timed)
            profiler.told.clear()
            execution.profile(runs, timed)
        medians: list[tuple[str, float]] = profiler.medians(runs)
        return medians


def _strict(text: str) -> str:
    """Return layer information as valid JSON: 8.6 leaves separators unescaped."""
    try:
        return json.dumps(parse_json(text, "The layer information", strict=False), indent=1) + "\n"
    except ValueError:  # not JSON but a plain list
        return text


def _grown(range_: ShapeRange, values: tuple[int, ...]) -> ShapeRange:
    return (
        range_.with_usual(values)
        if len(values) == len(range_.usual)
        else ShapeRange(values, values, values)
    )


class TensorRtEngine:
    """TensorRT, on a GPU."""

    name: ClassVar[str] = "tensorrt"
    module: ClassVar[str] = "tensorrt"
    own_options: ClassVar[Collection[str]] = ("tactic_sources",)
    builds_without_gpu: ClassVar[bool] = False
    has_timing_cache: ClassVar[bool] = True

    def __init__(self) -> None:
        self.library = Library(self.module)
        self._cuda: dict[int, Cuda] = {}
        self.why_no_gpu = ""
        self._runtime: Any = None
        self._builders: dict[tuple[str, ...], PlanBuilder] = {}

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the version and the GPU, with the options in effect."""
        settings = self._settings(options)
        cuda = self.cuda_of(settings.device)
        typing = self.library.typing_of(settings.typing)
        capability = cuda.capability if cuda is not None else settings.compute_capability
        return EngineInfo(
            name=self.name,
            version=self.library.version,
            device=cuda.device_name if cuda is not None else f"none: {self.why_no_gpu}",
            isa=capability,
            options={**settings.given, "typing": typing},
            float_type=float_type_of(typing, settings.precision, capability),
        )

    def open(self, path: str, options: SessionOptions) -> TensorRtSession:
        """Opens the model file; builds it now, or when the shapes of its inputs are known."""
        settings = self._settings(options)
        try:
            return TensorRtSession(self, settings, path, options.optimized_model_path)
        except ValueError as error:
            raise ValueError(f"{os.path.basename(path)}: {error}") from None

    def _settings(self, options: SessionOptions) -> Settings:
        return settings_of(options, self.own_options)

    def built_with(self, settings: Settings) -> tuple[str, ...]:
        """Return everything that a build depends on besides the model and its shapes."""
        given = {k: v for k, v in sorted(settings.given.items()) if k not in _NOT_BUILT_IN}
        options = (f"{name}={value}" for name, value in given.items())
        libraries = map(library_stamp, settings.plugins)
        return (self.name, self.library.version, self._device(settings), *options, *libraries)

    def builder_of(self, settings: Settings) -> PlanBuilder:
        """Return the builder for these settings."""
        key = (*self.built_with(settings), settings.timing_cache)
        if key not in self._builders:
            cache = self._timing_cache(settings)
            self._builders[key] = PlanBuilder(self.library, settings, cache)
        return self._builders[key]

    def _device(self, settings: Settings) -> str:
        cuda = self.cuda_of(settings.device)
        return cuda.device_name if cuda is not None else settings.compute_capability

    def _timing_cache(self, settings: Settings) -> TimingCacheFile | None:
        if settings.timing_cache == NO_CACHE or not self.has_timing_cache:
            return None
        made_by = self.name, self.library.version, self._device(settings)
        return TimingCacheFile(settings.timing_cache or default_path(*made_by), *made_by)

    def cuda_of(self, device: int) -> Cuda | None:
        """Return CUDA on a GPU; None if there is no GPU and models can be built without one."""
        if device not in self._cuda and not self.why_no_gpu:
            if self.builds_without_gpu and not find_gpus().gpus:
                self.why_no_gpu = f"no NVIDIA GPU answers ({find_gpus().reason})"
                return None
            try:
                self._cuda[device] = Cuda(device)
            except (CudaError, ImportError) as error:
                if not self.builds_without_gpu:
                    raise
                self.why_no_gpu = str(error)
        return self._cuda.get(device)

    def runtime(self) -> Any:
        """The runtime that deserializes built engines."""
        if self._runtime is None:
            self._runtime = self.library.api.Runtime(self.library.log)
            if self._runtime is None:
                raise RuntimeError(telling(self.library.log.errors) or "there is no runtime")
        return self._runtime


class TensorRtRtxEngine(TensorRtEngine):
    """TensorRT-RTX; without a GPU it can still build models and list their layers."""

    name = "tensorrt_rtx"
    module = "tensorrt_rtx"
    own_options = ("compute_capability",)
    builds_without_gpu = True
    has_timing_cache = False

    def _settings(self, options: SessionOptions) -> Settings:
        settings = super()._settings(options)
        if settings.compute_capability or self.cuda_of(settings.device) is not None:
            return settings
        return replace(settings, compute_capability=_WITHOUT_GPU)
