"""TensorRT and TensorRT-RTX as engines, and a model open in them. Run in the worker.

The parent never imports this module.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from qdqtune.engines._hardware import find_gpus
from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._signature import Signature, read_signature
from qdqtune.engines._worker_environment import log_of, scratch_folder
from qdqtune.engines.tensorrt._builder import (
    BuildError,
    BuiltPlan,
    Library,
    ModelToBuild,
    PlanBuilder,
    ShapesMissing,
    telling,
)
from qdqtune.engines.tensorrt._caches import (
    NO_CACHE,
    PlanCache,
    TimingCacheFile,
    default_path,
    library_stamp,
    plan_key,
)
from qdqtune.engines.tensorrt._execution import Cuda, CudaError, Execution, ExecutionError
from qdqtune.engines.tensorrt._layer_info import parse_layer_info
from qdqtune.engines.tensorrt._profile import layer_times_of, make_profiler
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


@dataclass(frozen=True)
class BuildContext:
    """What sessions of one engine share.

    Attributes:
        name: The engine's name.
        library: TensorRT.
        cuda: CUDA; None without a GPU.
        runtime: Reads built engines; None without a GPU.
        builder: Builds them.
        plans: Those that were built before.
        settings: How models are opened.
        built_with: All that a build depends on beside the model and its shapes.
        why_no_gpu: Why nothing can be run.
    """

    name: str
    library: Library
    cuda: Cuda | None
    runtime: Any
    builder: PlanBuilder
    plans: PlanCache
    settings: Settings
    built_with: tuple[str, ...]
    why_no_gpu: str = ""


class TensorRtSession:
    """An open model.

    Args:
        context: What builds and runs it.
        path: The model file.
        signature: Its inputs and outputs.
        options: How to open it.
    """

    def __init__(
        self, context: BuildContext, path: str, signature: Signature, options: SessionOptions
    ) -> None:
        self._context = context
        self._path = path
        self._signature = signature
        self._layers_path = options.optimized_model_path
        self._shapes: dict[str, ShapeRange] = {}
        self._values: dict[str, ShapeRange] = {}
        self._layer_text = ""
        self._engine: Any = None
        self._timed: Execution | None = None
        self._feeds: Feeds | None = None
        requested = context.settings.shapes
        requested.check_names(signature.dims)
        ranges = {name: requested.range_of(name, None) for name in signature.open_inputs}
        if all(ranges.values()):
            self._shapes = {name: each for name, each in ranges.items() if each is not None}
            try:
                self._build()
            except ShapesMissing:
                return  # values of inputs decide shapes: the first feeds tell them

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """What the model wants."""
        return self._signature.inputs

    def set_feeds(self, feeds: Feeds) -> None:
        """Copies the inputs of timed runs to the GPU; builds, if the shapes are new."""
        self._feeds = None
        self._fit(feeds)
        self._feeds = feeds
        self._forget_runs()
        if self._context.cuda is not None:  # layers can be told without
            self._execution_of(feeds)

    def run(self, feeds: Feeds) -> Outputs:
        """Runs once and returns the outputs."""
        self._fit(feeds)
        execution = self._new_execution(feeds)
        try:
            execution.run()
            return execution.outputs(self._signature.outputs)
        finally:
            execution.close()

    def time_runs(self, runs: int) -> list[float]:
        """Runs back to back on the kept feeds; milliseconds between events on the GPU."""
        return self._execution_of(self._kept_feeds()).time(runs)

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per layer; without a GPU the layers are told, with 0 ms each."""
        feeds, layers = self._kept_feeds(), parse_layer_info(self._layer_text)
        is_run = self._context.cuda is not None
        return layer_times_of(self._path, layers, self._profile(feeds, runs) if is_run else [])

    def close(self) -> None:
        """Drops the engine and its memory."""
        self._forget_runs()
        self._engine = None

    def _kept_feeds(self) -> Feeds:
        if self._feeds is None:
            raise ValueError("the model was given no feeds to run on")
        return self._feeds

    def _execution_of(self, feeds: Feeds) -> Execution:
        """What is timed; made anew if a run on other shapes took another engine."""
        if self._timed is None:
            execution = self._new_execution(feeds)
            if self._context.settings.cuda_graph:
                execution.capture()
            self._timed = execution
        return self._timed

    def _forget_runs(self) -> None:
        if self._timed is not None:
            self._timed.close()
            self._timed = None

    def _fit(self, feeds: Feeds) -> None:
        """Makes sure that there is an engine for inputs like these."""
        self._signature.check_feeds(feeds)
        wanted = {name: tuple(feeds[name].shape) for name in self._signature.open_inputs}
        fits = all(name in self._shapes and self._shapes[name].has(s) for name, s in wanted.items())
        values = {name: tuple(map(int, feeds[name].flat)) for name in self._values}
        fits &= all(self._values[name].has(value) for name, value in values.items())
        if fits and (self._engine is not None or self._layer_text):
            return
        before = self._shapes, self._values
        self._shapes = widened(self._context.settings.shapes, wanted, self._shapes)
        if self._feeds is not None:  # kernels are chosen for what is timed
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
        context, log = self._context, self._context.library.log
        ranges = [f"{k}={v}" for k, v in sorted({**self._shapes, **self._values}.items())]
        key = plan_key(self._path, [*context.built_with, *ranges])
        kept = context.plans.find(key) if context.runtime is not None else None
        try:
            with log.about(log_of(self._path, context.name)):
                if kept is None or not self._take_kept(kept):
                    low_types = self._signature.low_types
                    model = ModelToBuild(self._path, low_types, self._shapes, self._values)
                    plan = context.builder.build(model)
                    if context.runtime is not None:
                        # If there is no room, it may be built again.
                        with contextlib.suppress(OSError, OutputError):
                            context.plans.keep(key, plan.content)
                    self._take(plan)
        except BuildError as error:
            raise BuildError(f"{os.path.basename(self._path)}: {error}") from None
        if self._layers_path is not None:
            with writing(Path(self._layers_path)):
                Path(self._layers_path).write_text(_strict(self._layer_text), encoding="utf-8")

    def _take(self, plan: BuiltPlan) -> None:
        self._forget_runs()
        self._layer_text = plan.layer_list
        if self._context.runtime is None:
            return
        self._engine = self._context.runtime.deserialize_cuda_engine(plan.content)
        if self._engine is None:
            reason = telling(self._context.library.log.errors)
            raise BuildError(reason or "the built engine can't be loaded")
        inspector = self._engine.create_engine_inspector()
        form = self._context.library.api.LayerInformationFormat.JSON
        self._layer_text = inspector.get_engine_information(form)

    def _take_kept(self, path: Path) -> bool:
        try:
            self._take(BuiltPlan(path.read_bytes()))
        except (BuildError, OSError):  # it is broken, or was dropped just now
            self._context.library.log.errors = []
            return False
        return True

    def _new_execution(self, feeds: Feeds, profiler: Any = None) -> Execution:
        if self._context.cuda is None:
            raise ExecutionError(self._context.why_no_gpu)
        self._context.library.log.errors = []
        execution = Execution(self._context.library, self._context.cuda, self._engine, profiler)
        try:
            execution.put(feeds)
        except BaseException:
            execution.close()
            raise
        return execution

    def _profile(self, feeds: Feeds, runs: int) -> list[tuple[str, float]]:
        timed = self._execution_of(feeds)
        profiler = make_profiler(self._context.library.api)
        execution = self._new_execution(feeds, profiler)
        try:
            execution.profile(_PROFILE_WARMUP_RUNS, timed)
            profiler.told.clear()
            execution.profile(runs, timed)
        finally:
            execution.close()
        medians: list[tuple[str, float]] = profiler.medians(runs)
        return medians


def _strict(text: str) -> str:
    """What is told about layers as JSON that others can read: 8.6 leaves separators unescaped."""
    try:
        return json.dumps(parse_json(text, "The layer information", strict=False), indent=1) + "\n"
    except ValueError:  # it is no JSON but a list
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
        self._library = Library(self.module)
        self._cuda: dict[int, Cuda] = {}
        self._why_no_gpu = ""
        self._runtime: Any = None
        self._builders: dict[tuple[str, ...], PlanBuilder] = {}

    def info(self, options: SessionOptions) -> EngineInfo:
        """Returns the version and the GPU, with the options in effect."""
        settings = self._settings(options)
        cuda = self._cuda_of(settings.device)
        typing = self._library.typing_of(settings.typing)
        capability = cuda.capability if cuda is not None else settings.compute_capability
        return EngineInfo(
            name=self.name,
            version=self._library.version,
            device=cuda.device_name if cuda is not None else f"none: {self._why_no_gpu}",
            isa=capability,
            options={**settings.given, "typing": typing},
            float_type=float_type_of(typing, settings.precision, capability),
        )

    def open(self, path: str, options: SessionOptions) -> TensorRtSession:
        """Opens the model file; builds it now, or when the shapes of its inputs are known."""
        settings = self._settings(options)
        try:
            signature = read_signature(path)
            return TensorRtSession(self._build_context(settings), path, signature, options)
        except ValueError as error:
            raise ValueError(f"{os.path.basename(path)}: {error}") from None

    def _settings(self, options: SessionOptions) -> Settings:
        return settings_of(options, self.own_options)

    def _build_context(self, settings: Settings) -> BuildContext:
        cuda = self._cuda_of(settings.device)
        device = cuda.device_name if cuda is not None else settings.compute_capability
        given = {k: v for k, v in sorted(settings.given.items()) if k not in _NOT_BUILT_IN}
        options = (f"{name}={value}" for name, value in given.items())
        built_with = (*options, *map(library_stamp, settings.plugins))
        key = (*built_with, settings.timing_cache)
        if key not in self._builders:
            cache = self._timing_cache(settings, device)
            self._builders[key] = PlanBuilder(self._library, settings, cache)
        return BuildContext(
            self.name,
            self._library,
            cuda,
            self._started_runtime() if cuda is not None else None,
            self._builders[key],
            PlanCache(Path(settings.plan_cache or scratch_folder() / "plans")),
            settings,
            (self.name, self._library.version, device, *built_with),
            f"models can't be run here: {self._why_no_gpu}" if self._why_no_gpu else "",
        )

    def _timing_cache(self, settings: Settings, device: str) -> TimingCacheFile | None:
        if settings.timing_cache == NO_CACHE or not self.has_timing_cache:
            return None
        version = self._library.version
        path = settings.timing_cache or default_path(self.name, version, device)
        return TimingCacheFile(path, self.name, version, device)

    def _cuda_of(self, device: int) -> Cuda | None:
        """Return CUDA on a GPU; None if there is none and models can be built without."""
        if device not in self._cuda and not self._why_no_gpu:
            if self.builds_without_gpu and not find_gpus().gpus:
                self._why_no_gpu = f"no NVIDIA GPU answers ({find_gpus().reason})"
                return None
            try:
                self._cuda[device] = Cuda(device)
            except (CudaError, ImportError) as error:
                if not self.builds_without_gpu:
                    raise
                self._why_no_gpu = str(error)
        return self._cuda.get(device)

    def _started_runtime(self) -> Any:
        if self._runtime is None:
            self._runtime = self._library.api.Runtime(self._library.log)
            if self._runtime is None:
                raise RuntimeError(telling(self._library.log.errors) or "there is no runtime")
        return self._runtime


class TensorRtRtxEngine(TensorRtEngine):
    """TensorRT-RTX: without a GPU it builds, and lists layers."""

    name = "tensorrt_rtx"
    module = "tensorrt_rtx"
    own_options = ("compute_capability",)
    builds_without_gpu = True
    has_timing_cache = False

    def _settings(self, options: SessionOptions) -> Settings:
        settings = super()._settings(options)
        if settings.compute_capability or self._cuda_of(settings.device) is not None:
            return settings
        return replace(settings, compute_capability=_WITHOUT_GPU)
