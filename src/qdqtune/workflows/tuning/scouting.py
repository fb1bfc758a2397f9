"""What a run finds out before it searches: the choices, the noise, where the latency goes."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path

from qdqtune.autotune.grouping import Grouping, group_ops
from qdqtune.autotune.space import Space, State
from qdqtune.calibration.observed import observe_shapes, unknown_tensors
from qdqtune.engines.contest import compare_files
from qdqtune.engines.isolated import StoredFeeds, Worker, WorkerFailure
from qdqtune.engines.shares import estimated_shares, shares_of_latency
from qdqtune.engines.timing import typical_gain
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import WEIGHTED_OPS
from qdqtune.graph.prepared import PreparedModel
from qdqtune.graph.shapes import at_shapes
from qdqtune.qdq.completion import Completion
from qdqtune.qdq.dialect import Dialect
from qdqtune.records.errors import EngineError
from qdqtune.records.placement import Placement
from qdqtune.records.tuning import Noise
from qdqtune.workflows.calibrating import Feeding

_logger = logging.getLogger(__name__)

_PROFILE_RUNS = 5
# How many standard errors a difference must have to be seen.
_SEEN = 2.0
# Ops between weighted ones that pass eight bits on at little cost.
_BETWEEN = frozenset({"Add", "AveragePool", "Concat", "GlobalAveragePool"})


def find_choices(
    base: PreparedModel, dialect: Dialect, quant_type: str, feeding: Feeding, worker: Worker | None
) -> tuple[Completion, Grouping]:
    """What can be quantized in a model, and which of it belongs together.

    Args:
        base: The float model.
        dialect: Whose kernels.
        quant_type: To what.
        feeding: The input shapes.
        worker: An ONNX Runtime worker for shapes that can't be inferred; without one they stay
            unknown.
    """
    with at_shapes(base.index.model, feeding.shapes):
        index = GraphIndex(base.index.model)
        if worker is not None and unknown_tensors(index):
            observe_shapes(base, worker, next(iter(feeding.judged())))
        completion = Completion(index, dialect, quant_type)
        return completion, group_ops(index, completion)


def seeds_of(space: Space, given: Placement | None) -> dict[str, State]:
    """Whole-model choices to begin with.

    Args:
        space: The choices.
        given: What was quantized in the file as it came, if anything.
    """
    seeds = {
        "everything": space.everything,
        "weighted ops": space.weighted(),
        "weighted ops and what is between": space.of_ops(WEIGHTED_OPS | _BETWEEN),
    }
    if given is not None:
        seeds["as given"] = space.nearest(given)
    return {name: state for name, state in seeds.items() if state}


def latency_shares(
    worker: Worker, path: Path, feeds: StoredFeeds, index: GraphIndex
) -> Mapping[str, float]:
    """Which ops the float model's latency goes into; a guess if the engine can't tell."""
    try:
        model = worker.open(path)
        worker.feed(model, feeds)
        layers = worker.layers(model, _PROFILE_RUNS)
        worker.release(model)
    except WorkerFailure as failure:
        _logger.info("the engine does not say where its time goes: %s", failure)
        return estimated_shares(index)
    return shares_of_latency(index, layers)


def check_noise(
    worker: Worker, path: Path, feeds: StoredFeeds, rounds: int, screen_rounds: int
) -> tuple[Noise, float]:
    """Time the model against itself.

    Args:
        worker: The engine.
        path: The model.
        feeds: What it is run on.
        rounds: How many blocks to take.
        screen_rounds: How many a screening comparison will have.

    Returns:
        What can be seen on this machine, and the model's latency in milliseconds.

    Raises:
        EngineError: If the engine doesn't run the model.
    """
    (one, other), _ = compare_files(worker, [path, path], feeds, rounds=rounds)
    for measurement in (one, other):
        if not measurement.ok:
            raise EngineError(
                f"The engine does not run the model as it is: {measurement.error}",
                "Nothing can be gained on an engine that refuses the model. Try `qdqtune bench` "
                "on it.",
            )
    gain, error = typical_gain(one.blocks_ms, other.blocks_ms)
    screened = error * math.sqrt(rounds / screen_rounds)
    return Noise(math.exp(gain), math.expm1(_SEEN * screened)), one.latency_ms
