"""A model open in TensorRT: built when its shapes are known, run where there is a GPU."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtune.engines.interface import InputSpec, SessionOptions
from qdqtune.engines.tensorrt.building import (
    BuildError,
    BuiltPlan,
    ModelToBuild,
    PlanBuilder,
    ShapesMissing,
)
from qdqtune.engines.tensorrt.cuda import Cuda
from qdqtune.engines.tensorrt.execution import Execution, ExecutionError
from qdqtune.engines.tensorrt.layer_info import LayerInfo, parse_layer_info
from qdqtune.engines.tensorrt.layer_times import layer_times_of, make_profiler
from qdqtune.engines.tensorrt.library import Library, telling
from qdqtune.engines.tensorrt.plan_cache import PlanCache, plan_key
from qdqtune.engines.tensorrt.settings import Settings
from qdqtune.engines.tensorrt.shapes import ShapeRange, widened
from qdqtune.engines.tensorrt.signature import Signature
from qdqtune.engines.worker_environment import log_of
from qdqtune.graph.disk_errors import writing
from qdqtune.records.errors import OutputError
from qdqtune.records.measurement import LayerTime
from qdqtune.records.untrusted_files import parse_json

if TYPE_CHECKING:
    from qdqtune.engines.interface import Feeds, Outputs

_PROFILE_WARMUP_RUNS = 2


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
        self._shop = context
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
        if self._shop.cuda is not None:  # layers can be told without
            self._timed = self._ready(feeds)

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
        if self._feeds is None:
            raise ValueError("the model was given no feeds to run on")
        if self._timed is None:  # a run on other shapes took another engine
            self._timed = self._ready(self._feeds)
        return self._timed.time(runs)

    def layer_times(self, runs: int) -> list[LayerTime]:
        """Typical time per layer; without a GPU the layers are told, with 0 ms each."""
        if self._feeds is None:
            raise ValueError("the model was given no feeds to run on")
        return layer_times_of(self._path, self._layer_info(), self._profile(runs))

    def close(self) -> None:
        """Drops the engine and its memory."""
        self._forget_runs()
        self._engine = None

    def _ready(self, feeds: Feeds) -> Execution:
        execution = self._new_execution(feeds)
        if self._shop.settings.cuda_graph:
            execution.capture()
        return execution

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
        if self._is_built and fits:
            return
        before = self._shapes, self._values
        self._shapes = widened(self._shop.settings.shapes, wanted, self._shapes)
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

    @property
    def _is_built(self) -> bool:
        return self._engine is not None or bool(self._layer_text)

    def _build(self) -> None:
        shop, log = self._shop, self._shop.library.log
        ranges = [f"{k}={v}" for k, v in sorted({**self._shapes, **self._values}.items())]
        key = plan_key(self._path, [*shop.built_with, *ranges])
        kept = shop.plans.find(key) if shop.runtime is not None else None
        try:
            with log.about(log_of(self._path, shop.name)):
                if kept is None or not self._take_kept(kept):
                    plan = shop.builder.build(self._to_build)
                    if shop.runtime is not None:
                        # If there is no room, it may be built again.
                        with contextlib.suppress(OSError, OutputError):
                            shop.plans.keep(key, plan.content)
                    self._take(plan)
        except BuildError as error:
            raise BuildError(f"{os.path.basename(self._path)}: {error}") from None
        if self._layers_path is not None:
            with writing(Path(self._layers_path)):
                Path(self._layers_path).write_text(_strict(self._layer_text), encoding="utf-8")

    @property
    def _to_build(self) -> ModelToBuild:
        return ModelToBuild(self._path, self._signature.low_types, self._shapes, self._values)

    def _take(self, plan: BuiltPlan) -> None:
        self._forget_runs()
        self._layer_text = plan.layer_list
        if self._shop.runtime is None:
            return
        self._engine = self._shop.runtime.deserialize_cuda_engine(plan.content)
        if self._engine is None:
            reason = telling(self._shop.library.log.errors)
            raise BuildError(reason or "the built engine can't be loaded")
        inspector = self._engine.create_engine_inspector()
        form = self._shop.library.api.LayerInformationFormat.JSON
        self._layer_text = inspector.get_engine_information(form)

    def _take_kept(self, path: Path) -> bool:
        try:
            self._take(BuiltPlan(path.read_bytes()))
        except (BuildError, OSError):  # it is broken, or was dropped just now
            self._shop.library.log.errors = []
            return False
        return True

    def _new_execution(self, feeds: Feeds, profiler: Any = None) -> Execution:
        if self._shop.cuda is None:
            raise ExecutionError(self._shop.why_no_gpu)
        self._shop.library.log.errors = []
        execution = Execution(self._shop.library, self._shop.cuda, self._engine, profiler)
        try:
            execution.put(feeds)
        except BaseException:
            execution.close()
            raise
        return execution

    def _layer_info(self) -> LayerInfo:
        return parse_layer_info(self._layer_text)

    def _profile(self, runs: int) -> list[tuple[str, float]]:
        if self._shop.cuda is None or self._feeds is None:
            return []
        if self._timed is None:
            self._timed = self._ready(self._feeds)
        profiler = make_profiler(self._shop.library.api)
        execution = self._new_execution(self._feeds, profiler)
        try:
            execution.profile(_PROFILE_WARMUP_RUNS, self._timed)
            profiler.told.clear()
            execution.profile(runs, self._timed)
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
