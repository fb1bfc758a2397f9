"""TensorRT and TensorRT-RTX. Run in the worker; the parent never imports this module."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from qdqtune.engines.gpu import find_gpus
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.tensorrt.building import PlanBuilder
from qdqtune.engines.tensorrt.cuda import Cuda, CudaError
from qdqtune.engines.tensorrt.library import Library, telling
from qdqtune.engines.tensorrt.plan_cache import PlanCache
from qdqtune.engines.tensorrt.session import BuildContext, TensorRtSession
from qdqtune.engines.tensorrt.settings import Settings, float_type_of, settings_of
from qdqtune.engines.tensorrt.signature import read_signature
from qdqtune.engines.tensorrt.timing_cache import NO_CACHE, TimingCacheFile, default_path
from qdqtune.engines.worker_environment import scratch_folder
from qdqtune.records.measurement import EngineInfo

# The build target where there is no GPU: Ada, the oldest with float8.
_WITHOUT_GPU = "sm89"
# Options that determine where a built engine comes from, but not its content.
_NOT_BUILT_IN = (
    "plan_cache",
    "timing_cache",
    "cuda_graph",
    "min_shapes",
    "opt_shapes",
    "max_shapes",
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
        libraries = (f"{path} {_state_of(path)}" for path in settings.plugins)
        built_with = (*(f"{name}={value}" for name, value in given.items()), *libraries)
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


def _state_of(path: str) -> str:
    """Return a stamp that changes when a library is rebuilt; empty if it isn't at that path."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


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
