"""Timing model files against each other, honestly."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import onnx_ir as ir

from qdqtune.calibration.inputs import Feeds, model_inputs, random_inputs
from qdqtune.engines import registry
from qdqtune.engines.contest import compare_files
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.comparison import BenchRecord, Contestant
from qdqtune.records.errors import EngineError, UsageError


def compare(
    models: Sequence[str | os.PathLike[str]],
    *,
    engine: str = registry.AUTO,
    threads: int | None = None,
    runs: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> BenchRecord:
    """Time every model against the first, in alternating blocks of one run.

    Args:
        models: At least one file; the first is the baseline. All must take the same inputs.
        engine: What runs them.
        threads: Threads per run; None is the engine's default.
        runs: Timed runs per model; None takes as many as fit into seconds per model, and fewer
            where the answer is clear.
        seed: Seed of the random inputs.
        progress: Called with the rounds done and planned.

    Raises:
        QdqtuneError: Whatever the user can act on. A model that the engine refuses is not an
            error but a record.
    """
    paths = [os.fspath(model) for model in models]
    if not paths:
        raise UsageError("There is no model to time.")
    name = registry.resolve(engine)
    feeds = _feeds(paths, seed)
    options = SessionOptions(threads=threads)
    with Worker(name, options) as worker:
        try:
            info = worker.info()
        except WorkerFailure as failure:
            raise EngineError(
                f"{name} does not start: {failure}", "See `qdqtune doctor`."
            ) from None
        measured, compared = compare_files(worker, paths, feeds, runs=runs, progress=progress)
    contestants = tuple(
        Contestant(path, measurement, comparison)
        for path, measurement, comparison in zip(paths, measured, [None, *compared], strict=True)
    )
    inputs = {name: f"{array.dtype}{list(array.shape)}" for name, array in feeds.items()}
    return BenchRecord(info, contestants, inputs, seed)


def _feeds(paths: Sequence[str], seed: int) -> Feeds:
    """Inputs that fit all models.

    Raises:
        UsageError: If the models don't take the same inputs.
    """
    first = load_model(paths[0])
    infer_shapes(first)
    wanted = _signature(first)
    for path in paths[1:]:
        found = _signature(load_model(path))
        if found != wanted:
            raise UsageError(
                f"{path} takes other inputs than {paths[0]}: {_shown(found)} against "
                f"{_shown(wanted)}.",
                "Only models with the same inputs can be compared.",
            )
    return next(random_inputs(GraphIndex(first), 1, seed))


def _signature(model: ir.Model) -> dict[str, str]:
    return {value.name or "": f"{value.dtype} {value.shape}" for value in model_inputs(model)}


def _shown(signature: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in sorted(signature.items())) or "none"
