"""`bench`: compare the latency of model files on the same inputs."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from qdqtune.calibration._output_error import SignalToNoise
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.config import BenchConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import advice_on
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._input_shapes import Inputs, bind_dims, input_dims, model_inputs, symbols_of
from qdqtune.graph._measured_shapes import measured_shapes
from qdqtune.graph._shapes import infer_shapes
from qdqtune.options import configured
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._inputs import InputRequest, request_of, shape_text
from qdqtune.records._measurement import BenchmarkEntry, BenchRecord, EngineInfo, Measurement
from qdqtune.workflows._arguments import AnyModel, as_file, name_of, wrong_type
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._sample_provider import (
    check_takes_ranges,
    options_with_ranges,
    timed_request,
)

if TYPE_CHECKING:
    from qdqtune.engines._interface import Outputs

_Sizes = tuple[int | None, ...]

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
    reporter = ProgressReporter(config.callbacks)
    reporter.tell("model", f"reading {', '.join(names)}")
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
        reporter.tell("engine", f"opening the models with {registry.title(name)} {info.version}")
        outputs = _OutputErrors()
        compares = registry.entry(name).measures and _tells_outputs(worker, name, paths[0], feeds)
        measured, compared = compare_files(
            worker, paths, feeds, runs=config.runs, min_time_s=config.min_time_s,
            progress=reporter.counter("timing", "rounds"),
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
    """Return the running engine's name, version and device.

    Raises:
        EngineError: If it does not run.
        UsageError: If it refuses the options.
    """
    try:
        info = worker.info()
    except WorkerFailure as failure:
        refused = str(failure).removeprefix(_REFUSED)
        if refused != str(failure):
            raise UsageError(
                f"{registry.title(name)} does not take these options: {refused}.",
                f"The page about {registry.title(name)} in docs/guides lists its options.",
            ) from None
        raise EngineError(f"{name} does not start: {failure}", "See `qdqtune doctor`.") from None
    return info if registry.entry(name).takes_threads else replace(info, takes_threads=False)


def _tells_outputs(worker: Worker, engine: str, path: str, feeds: Feeds) -> bool:
    """Whether an engine returns outputs: a program may lack that option."""
    if not registry.entry(engine).program:
        return True
    try:
        with worker.opened(path) as model:
            worker.run(model, feeds)
    except WorkerFailure as failure:
        _logger.info("outputs are not compared: %s", failure)
        return False
    return True


class _OutputErrors:
    """The errors of each model's outputs against the first one's, on one set of inputs."""

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
        UsageError: If the models' inputs differ from each other or from the request.
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


@dataclass(frozen=True)
class Signature:
    """The inputs of a model.

    Attributes:
        path: The model's name for messages.
        types: Element type of every input.
        dims: Dims of every input.
    """

    path: str
    types: Mapping[str, str]
    dims: Inputs

    def __str__(self) -> str:
        listed = [
            f"{name} {kind} {shape_text(self.dims[name])}"
            for name, kind in sorted(self.types.items())
        ]
        return ", ".join(listed) or "none"


def signature(path: str, model: ir.Model) -> Signature:
    """Read the inputs of a model; `path` is its name in error messages."""
    types = {value.name or "": str(value.dtype) for value in model_inputs(model)}
    return Signature(path, types, input_dims(model))


def common_request(models: Sequence[Signature], request: InputRequest) -> InputRequest:
    """Return the request for the first model, with dims that the others fix added.

    Raises:
        UsageError: If the models don't take the same inputs.
    """
    first = models[0]
    known: dict[str, _Sizes] = {}
    for model in models:
        if model.types != first.types:
            raise _other_inputs(model, first)
        for name, dims in bind_dims(model.dims, _part_for(model, models, request)).items():
            if dims is None:
                continue
            sizes = tuple(dim if isinstance(dim, int) else None for dim in dims)
            both = _merged(known.get(name, sizes), sizes)
            if both is None:
                raise _other_inputs(model, first)
            known[name] = both
    return replace(_part_for(first, models, request), shapes=known)


def _part_for(model: Signature, models: Sequence[Signature], request: InputRequest) -> InputRequest:
    """Return the request without symbols that other models have and this one doesn't."""
    here = set(symbols_of(model.dims))
    elsewhere = {symbol for one in models for symbol in symbols_of(one.dims)} - here
    dims = {symbol: size for symbol, size in request.dims.items() if symbol not in elsewhere}
    return replace(request, dims=dims)


def _merged(one: _Sizes, other: _Sizes) -> _Sizes | None:
    """Merge two dims; None if they conflict."""
    if len(one) != len(other):
        return None
    pairs = list(zip(one, other, strict=True))
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    return tuple(b if a is None else a for a, b in pairs)


def _other_inputs(model: Signature, first: Signature) -> UsageError:
    return UsageError(
        f"{model.path} takes other inputs than {first.path}: {model} against {first}.",
        "Only models with the same inputs can be compared.",
    )
