"""Phase 1 of subgraph mode: where the engine fuses, from its layers or from a file about them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from qdqtune.autotune.subgraphs.fusion_groups import FusionGroup, fusion_groups
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.engines.layer_files import map_layers, read_layer_info
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import QDQ_OPS
from qdqtune.records.errors import UsageError
from qdqtune.records.layers import MappedLayer
from qdqtune.workflows.tuning.layer_file import layers_in_file
from qdqtune.workflows.tuning.preflight import layers_told

_logger = logging.getLogger(__name__)

_PROFILE_RUNS = 20
# A file that mentions a smaller part of the ops may well be of another model.
_LEAST_MENTIONED = 0.5


def find_groups(
    index: GraphIndex,
    worker: Worker,
    plain: Path,
    feeds: StoredFeeds,
    graph_json: Path | None = None,
    own_json: Path | None = None,
) -> tuple[tuple[FusionGroup, ...], list[float]]:
    """The fusion groups of a model.

    Args:
        index: The model.
        worker: The engine.
        plain: The model as a file.
        feeds: What it is run on.
        graph_json: A file with the layers of a build of it, instead of those that the engine tells.
        own_json: A file with the layers that the engine wrote; the times are still told by itself.

    Returns:
        The groups, and the milliseconds of each; 0 where they are not known.

    Raises:
        UsageError: If the file can't be read.
    """
    if graph_json is not None:
        layers: Sequence[MappedLayer] = map_layers(index, read_layer_info(graph_json))
    else:
        layers = _layers_of(index, worker, plain, feeds, own_json)
    groups = fusion_groups(index, layers)
    return groups, spent_by_group(groups, layers)


def spent_by_group(groups: Sequence[FusionGroup], layers: Sequence[MappedLayer]) -> list[float]:
    """Milliseconds of each group; those of a layer in several groups are divided by nodes."""
    parts: list[list[tuple[int, int]]] = [[] for _ in layers]
    for place, group in enumerate(groups):
        inside = set(group.nodes)
        for number in group.layers:
            parts[number].append((place, len(inside.intersection(layers[number].nodes))))
    spent = [0.0] * len(groups)
    for layer, shares in zip(layers, parts, strict=True):
        whole = sum(nodes for _, nodes in shares)
        for place, nodes in shares:
            spent[place] += layer.ms * (nodes / whole if whole else 1 / len(shares))
    return spent


def check_layer_file(index: GraphIndex, graph_json: str | Path) -> None:
    """Make sure that a file with layers is about a model; see `check_mentions`."""
    check_mentions(index, map_layers(index, read_layer_info(graph_json)), graph_json)


def check_mentions(
    index: GraphIndex, layers: Iterable[MappedLayer], graph_json: str | Path
) -> None:
    """Make sure that layers are those of a model, and warn if they hardly are.

    Args:
        index: The model.
        layers: What was found of it in the file.
        graph_json: The file.

    Raises:
        UsageError: If they mention nothing of the model.
    """
    expected = _computing(index) or set(index.node)
    found = expected.intersection(name for layer in layers for name in layer.nodes)
    if expected and not found:
        raise UsageError(
            f"No layer in {graph_json} mentions an op of the model: is it of this model?",
            "The names of layers have to be made of those of the model's nodes.",
        )
    if len(found) < _LEAST_MENTIONED * len(expected):
        _logger.warning(
            "%s mentions %d of %d ops that compute (%.0f %%), the others are grouped by "
            "structure: is it of this model?",
            graph_json, len(found), len(expected), 100 * len(found) / len(expected),
        )  # fmt: skip


def _computing(index: GraphIndex) -> set[str]:
    """Nodes that compute floats from the model's inputs: an engine has layers for these."""
    fixed: set[str] = set()
    found: set[str] = set()
    for node in index.nodes:
        name, outputs = node.name or "", [value.name for value in node.outputs if value.name]
        read = [value.name or "" for value in node.inputs if value is not None]
        if node.op_type == "Constant" or (
            read and all(each in fixed or index.is_constant(each) for each in read)
        ):
            fixed.update(outputs)
        elif node.op_type not in QDQ_OPS and any(
            index.dtype(each) is None or index.is_float(each) for each in outputs
        ):
            found.add(name)
    return found


def _layers_of(
    index: GraphIndex, worker: Worker, plain: Path, feeds: StoredFeeds, own_json: Path | None
) -> list[MappedLayer]:
    layers = layers_told(worker, plain, feeds, _PROFILE_RUNS)
    written = layers_in_file(index, own_json, layers) if own_json is not None else None
    if written is not None:
        return written
    if not layers:
        _logger.warning("the engine does not tell its layers: ops are grouped by structure")
    return nodes_of_layers(index, layers)
