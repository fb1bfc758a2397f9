"""Compare the latency of model files."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from qdqtune.calibration.output_error import SignalToNoise
from qdqtune.calibration.random_inputs import Feeds, random_inputs
from qdqtune.config import BenchConfig
from qdqtune.engines import registry
from qdqtune.engines.comparison import compare_files
from qdqtune.engines.custom_ops import advice_on
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.open_model import opened
from qdqtune.graph.dynamic_dims import measured_shapes
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import bind_dims
from qdqtune.graph.shapes import infer_shapes
from qdqtune.options import configured
from qdqtune.records.comparison import BenchmarkEntry, BenchRecord
from qdqtune.records.errors import EngineError, UsageError
from qdqtune.records.inputs import InputRequest, request_of
from qdqtune.records.measurement import EngineInfo, Measurement
from qdqtune.workflows.arguments import wrong_type
from qdqtune.workflows.common_inputs import common_request, signature
from qdqtune.workflows.model_argument import AnyModel, as_file, name_of
from qdqtune.workflows.tuning.shape_ranges import (
    check_takes_ranges,
    options_with_ranges,
    timed_request,
)

if TYPE_CHECKING:
    from qdqtune.engines.interface import Outputs

_logger = logging.getLogger(__name__)

# How an engine reports refused options.
_REFUSED = "ValueError: "


@configured(BenchConfig)
def bench(models: Sequence[AnyModel], config: BenchConfig) -> BenchRecord:
    """Time every model against the first, in alternating blocks of one run.

    Args:
        models: At least one, each a path, a proto or an `onnx_ir.Model`; the first is the
            baseline. All must take the same inputs.
        config: The settings; any of its fields can be given as a keyword instead. A dim that one
            model fixes and another leaves open has the fixed size.

    Raises:
        QdqtuneError: For any error that the user can act on. A model that the engine refuses is not
            an error but a record.
    """
    if isinstance(models, str | os.PathLike) or not isinstance(models, Sequence):
        raise wrong_type("models", models, "a list of models")
    if not models:
        raise UsageError("There is no model to time.", "Name at least one file.")
    request = config.input_request
    name = registry.resolve(config.engine, config.engine_options)
    check_takes_ranges(name, config.min_shapes, config.max_shapes)
    least = request_of(config.min_shapes, "min_shapes")
    most = request_of(config.max_shapes, "max_shapes")
    names = [name_of(model, f"models[{number}]") for number, model in enumerate(models)]
    with ExitStack() as stack:
        paths = [
            str(stack.enter_context(as_file(model, shown)))
            for model, shown in zip(models, names, strict=True)
        ]
        first, feeds = _feeds(paths, request, least, most)
        fed_shapes = {each: tuple(array.shape) for each, array in feeds.items()}
        all_options = options_with_ranges(
            config.engine_options or {}, name, first, fed_shapes, least, most
        )
        options = SessionOptions(threads=config.threads, engine_options=all_options)
        worker = stack.enter_context(Worker(name, options, opening=config.opening))
        info = engine_info(worker, name)
        outputs = _Outputs()
        compares = registry.entry(name).measures and _tells_outputs(worker, name, paths[0], feeds)
        measured, compared = compare_files(
            worker, paths, feeds, runs=config.runs, min_time_s=config.min_time_s,
            progress=config.progress,
            take_outputs=outputs.take if compares else None,
        )  # fmt: skip
        _explain(name, paths, measured)
    entries = tuple(
        BenchmarkEntry(shown, measured[number], comparison, outputs.sqnr_db.get(number, {}))
        for number, (shown, comparison) in enumerate(zip(names, [None, *compared], strict=True))
    )
    fed = {name: f"{array.dtype}{list(array.shape)}" for name, array in feeds.items()}
    return BenchRecord(info, entries, fed, request.seed)


def _explain(engine: str, paths: Sequence[str], measured: Sequence[Measurement]) -> None:
    """Suggest what to do about models with ops that the engine doesn't know."""
    for path, found in zip(paths, measured, strict=True):
        advice = "" if found.ok else advice_on(found.error, Path(path), engine, "")
        if advice:
            _logger.warning("%s: %s", path, advice)


def engine_info(worker: Worker, name: str) -> EngineInfo:
    """Return which engine runs, its version and its device.

    Raises:
        EngineError: If none does.
        UsageError: If it refuses the options.
    """
    try:
        info = worker.info()
    except WorkerFailure as failure:
        refused = str(failure).removeprefix(_REFUSED)
        if refused != str(failure):
            raise UsageError(
                f"{registry.title(name)} does not take these options: {refused}.",
                f"docs/engines.md lists the options of {name}.",
            ) from None
        raise EngineError(f"{name} does not start: {failure}", "See `qdqtune doctor`.") from None
    return info if registry.entry(name).takes_threads else replace(info, takes_threads=False)


def _tells_outputs(worker: Worker, engine: str, path: str, feeds: Feeds) -> bool:
    """Whether an engine returns outputs: a program may lack the option for it."""
    if not registry.entry(engine).program:
        return True
    try:
        with opened(worker, path) as model:
            worker.run(model, feeds)
    except WorkerFailure as failure:
        _logger.info("outputs are not compared: %s", failure)
        return False
    return True


class _Outputs:
    """How far each model's outputs are from the first one's, on one set of inputs."""

    def __init__(self) -> None:
        self.sqnr_db: dict[int, dict[str, float]] = {}
        self._first: Outputs = {}

    def take(self, number: int, outputs: Outputs) -> None:
        if number == 0:
            self._first = outputs
            return
        ratio = SignalToNoise()
        ratio.add(self._first, outputs)
        self.sqnr_db[number] = ratio.decibels()


def _feeds(
    paths: Sequence[str],
    request: InputRequest,
    least: InputRequest | None,
    most: InputRequest | None,
) -> tuple[ir.Model, Feeds]:
    """Return the first model, and inputs that fit all models.

    Raises:
        UsageError: If the models don't take the same inputs, or not the requested ones.
    """
    first = load_model(paths[0])
    infer_shapes(first)
    models = [signature(paths[0], first)]
    models += [signature(path, load_model(path)) for path in paths[1:]]
    common = timed_request(first, common_request(models, request), least, most)
    shapes = measured_shapes(first, common)
    for model in models[1:]:
        bind_dims(model.dims, InputRequest(shapes))
    at = replace(request, shapes=shapes, dims={})
    return first, next(random_inputs(GraphIndex(first), 1, at))
