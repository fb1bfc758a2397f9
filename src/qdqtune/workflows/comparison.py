"""Timing model files against each other, honestly."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from qdqtune.calibration.inputs import Feeds, random_inputs
from qdqtune.calibration.quality import SignalToNoise
from qdqtune.engines import registry
from qdqtune.engines.contest import compare_files
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import bind_dims, resolve_shapes
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.comparison import BenchRecord, Contestant
from qdqtune.records.errors import EngineError, UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.measurement import EngineInfo
from qdqtune.workflows.same_inputs import common_request, signature

if TYPE_CHECKING:
    from qdqtune.engines.interface import Outputs

_NOTHING_SAID = InputRequest()


def bench(
    models: Sequence[str | os.PathLike[str]],
    *,
    engine: str = registry.AUTO,
    engine_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    runs: int | None = None,
    inputs: InputRequest = _NOTHING_SAID,
    progress: Callable[[int, int], None] | None = None,
) -> BenchRecord:
    """Time every model against the first, in alternating blocks of one run.

    Args:
        models: At least one file; the first is the baseline. All must take the same inputs.
        engine: What runs them.
        engine_options: The engine's own options.
        threads: Threads per run; None is the engine's default.
        runs: Timed runs per model; None takes as many as fit into seconds per model, and fewer
            where the answer is clear.
        inputs: Shapes, ranges and seed of the random inputs. A dim that one model fixes and
            another leaves open has the fixed size.
        progress: Called with the rounds done and planned.

    Raises:
        QdqtuneError: Whatever the user can act on. A model that the engine refuses is not an
            error but a record.
    """
    paths = [os.fspath(model) for model in models]
    if not paths:
        raise UsageError("There is no model to time.", "Name at least one file.")
    name = registry.resolve(engine)
    feeds = _feeds(paths, inputs)
    options = SessionOptions(threads=threads, engine_options=engine_options or {})
    with Worker(name, options) as worker:
        info = engine_info(worker, name)
        outputs = _Outputs()
        measured, compared = compare_files(
            worker, paths, feeds, runs=runs, progress=progress,
            take_outputs=outputs.take if registry.entry(name).measures else None,
        )  # fmt: skip
    contestants = tuple(
        Contestant(path, measured[number], comparison, outputs.sqnr_db.get(number, {}))
        for number, (path, comparison) in enumerate(zip(paths, [None, *compared], strict=True))
    )
    fed = {name: f"{array.dtype}{list(array.shape)}" for name, array in feeds.items()}
    return BenchRecord(info, contestants, fed, inputs.seed)


def engine_info(worker: Worker, name: str) -> EngineInfo:
    """Which engine answers, in which version, on what.

    Raises:
        EngineError: If none does.
    """
    try:
        return worker.info()
    except WorkerFailure as failure:
        raise EngineError(f"{name} does not start: {failure}", "See `qdqtune doctor`.") from None


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


def _feeds(paths: Sequence[str], request: InputRequest) -> Feeds:
    """Inputs that fit all models.

    Raises:
        UsageError: If the models don't take the same inputs, or not those that were asked for.
    """
    first = load_model(paths[0])
    infer_shapes(first)
    models = [signature(paths[0], first)]
    models += [signature(path, load_model(path)) for path in paths[1:]]
    shapes = resolve_shapes(first, common_request(models, request))
    for model in models[1:]:
        bind_dims(model.dims, InputRequest(shapes))
    return next(random_inputs(GraphIndex(first), 1, replace(request, shapes=shapes, dims={})))
