"""Phase 1 of subgraph mode: where the engine fuses, from its layers or from a file about them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from qdqtune.autotune.subgraphs.fusion_groups import FusionGroup, fusion_groups
from qdqtune.engines.isolated import StoredFeeds, Worker, WorkerFailure
from qdqtune.engines.layer_files import map_layers, read_layer_info
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.records.layers import MappedLayer

_logger = logging.getLogger(__name__)

_PROFILE_RUNS = 20


def find_groups(
    index: GraphIndex,
    worker: Worker,
    plain: Path,
    feeds: StoredFeeds,
    graph_json: Path | None = None,
) -> tuple[tuple[FusionGroup, ...], list[float]]:
    """The fusion groups of a model.

    Args:
        index: The model.
        worker: The engine.
        plain: The model as a file.
        feeds: What it is run on.
        graph_json: A file with the layers of a build of it, instead of those that the engine tells.

    Returns:
        The groups, and the milliseconds of each; 0 where they are not known.

    Raises:
        UsageError: If the file can't be read.
    """
    if graph_json is not None:
        layers: Sequence[MappedLayer] = map_layers(index, read_layer_info(graph_json))
    else:
        layers = _layers_of(index, worker, plain, feeds)
    groups = fusion_groups(index, layers)
    homes: dict[int, int] = {}
    for group in groups:
        for layer in group.layers:
            homes[layer] = homes.get(layer, 0) + 1
    times = [sum(layers[n].ms / homes[n] for n in group.layers) for group in groups]
    return groups, times


def _layers_of(
    index: GraphIndex, worker: Worker, plain: Path, feeds: StoredFeeds
) -> list[MappedLayer]:
    try:
        model = worker.open(plain)
        worker.feed(model, feeds)
        layers = worker.layers(model, _PROFILE_RUNS)
        worker.release(model)
    except WorkerFailure as failure:
        _logger.warning("the engine does not tell its layers, ops are grouped alone: %s", failure)
        return []
    return nodes_of_layers(index, layers)
