"""Phase 1 of subgraph mode: what the engine fuses, from its layers or from a file of them."""

from __future__ import annotations

import logging
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qdqtune.engines import _registry as registry
from qdqtune.engines._options import float_type_in_effect
from qdqtune.engines._worker import StoredFeeds, Worker, WorkerFailure
from qdqtune.engines.layers._files import map_layers, read_layer_info
from qdqtune.engines.layers._latency import estimated_shares
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._atomic_files import copy_file, writing
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import QDQ_OPS
from qdqtune.records._errors import OutputError, QdqtuneError, UsageError
from qdqtune.records._layers import MappedLayer
from qdqtune.records._measurement import LayerTime
from qdqtune.search.subgraphs._fusion_groups import FusionGroup, fusion_groups
from qdqtune.workflows._convert import written_type
from qdqtune.workflows.tuning._folder import LOGS
from qdqtune.workflows.tuning._preflight import copy_log, layers_told
from qdqtune.workflows.tuning._run_records import TuningRun
from qdqtune.workflows.tuning._subgraph_cache import SubgraphCache, TimedGroup

_logger = logging.getLogger(__name__)

# How the sublayers of a layer are numbered.
_SUBLAYER = re.compile(r"#\d+$")
_PROFILE_RUNS = 20
# A file that mentions a smaller share of the ops is probably from another model.
_LEAST_MENTIONED = 0.5


def write_layer_file(worker: Worker, plain: Path, feeds: StoredFeeds, target: Path) -> bool:
    """Make an engine write the layers of a model, unless the file exists.

    Args:
        worker: The engine.
        plain: The model.
        feeds: Its inputs, since some engines build only once they know the shapes.
        target: Where to write.

    Returns:
        Whether the file exists now.
    """
    if target.is_file():
        return True
    staged = worker.scratch / target.name
    options = replace(worker.options, optimized_model_path=str(staged))
    try:
        with worker.opened(plain, options) as model:
            worker.feed(model, feeds)
        copy_file(staged, target)
    except (WorkerFailure, OSError, OutputError) as failure:
        _logger.info("the engine does not write its layers: %s", failure)
        return False
    finally:
        staged.unlink(missing_ok=True)
    return True


def layers_in_file(
    index: GraphIndex, file: Path, times: Sequence[LayerTime]
) -> list[MappedLayer] | None:
    """Return the layers in a file, with the times that an engine reported.

    Args:
        index: The model.
        file: The file.
        times: Times by layer; missing layers take none.

    Returns:
        The layers; None if the file can't be read, or is from another model.
    """
    try:
        layers = map_layers(index, read_layer_info(file))
    except QdqtuneError as error:
        _logger.warning("%s", error.what)
        return None
    if not any(layer.nodes for layer in layers):
        return None
    # A part that was compiled as a whole is split into sublayers, whose shares of its time follow
    # their work.
    shares = estimated_shares(index)
    names = [_SUBLAYER.sub("", layer.name) for layer in layers]
    work = [sum(shares.get(node, 0.0) for node in layer.nodes) for layer in layers]
    spent: defaultdict[str, float] = defaultdict(float)
    whole: defaultdict[str, float] = defaultdict(float)
    for each in times:
        spent[each.name] += each.ms
    for name, own in zip(names, work, strict=True):
        whole[name] += own
    count = Counter(names)
    return [
        replace(layer, ms=spent[name] * (own / whole[name] if whole[name] else 1 / count[name]))
        for layer, name, own in zip(layers, names, work, strict=True)
    ]


def find_engine_groups(
    run: TuningRun, index: GraphIndex, plain: Path, cache: SubgraphCache
) -> tuple[FusionGroup, ...]:
    """Return the engine's groups, or those that an earlier run found.

    Args:
        run: The run.
        index: The float model.
        plain: Its file.
        cache: Has known groups, and stores new ones.

    Raises:
        UsageError: If a file with layers can't be read.
    """
    if cache.groups is None or not _is_whole(index, cache.groups):
        layers = _layers_of(run, index, plain)
        groups = fusion_groups(index, layers)
        spent = spent_by_group(groups, layers)
        structural = sum(group.is_structural for group in groups)
        nodes = (group.nodes for group in groups)
        parts = shared_layers(groups, layers)
        cache.keep_groups(list(map(TimedGroup, nodes, spent, parts)), structural)
    assert cache.groups is not None
    run.reporter.tell(
        "groups",
        f"{len(index.nodes)} ops in {len(cache.groups)} fusion groups, "
        f"{cache.structural} of them by structure",
    )
    return tuple(FusionGroup(n, nodes, ()) for n, (nodes, *_) in enumerate(cache.groups))


def layer_files(run: TuningRun) -> dict[str, str]:
    """Return the names of files with layers that this run, or an earlier one, wrote."""
    if run.request.config.graph_json is not None:
        return {}
    model, folder, float_type = run.request.model, run.folder, _float_type(run)
    files = {
        "graph_json": folder.layer_file(model, float_type),
        "build_log": folder.build_log(model, float_type),
    }
    return {name: file.name for name, file in files.items() if file.is_file()}


def _is_whole(index: GraphIndex, groups: Sequence[TimedGroup]) -> bool:
    """Whether groups contain every node of the model exactly once."""
    nodes = [name for group in groups for name in group.nodes]
    return len(nodes) == len(index.node) and index.node.keys() == set(nodes)


def _float_type(run: TuningRun) -> str:
    """Return the type that the engine computes floats in."""
    return float_type_in_effect(run.info, written_type(run.source.model)).value


def _layers_of(run: TuningRun, index: GraphIndex, plain: Path) -> Sequence[MappedLayer]:
    """Return the layers from the user's file, from one that the engine wrote, or as it reports."""
    if run.request.config.graph_json is not None:
        return map_layers(index, read_layer_info(Path(run.request.config.graph_json)))
    own = _write_layers(run, plain)
    layers = layers_told(run.engine, plain, run.feeds, _PROFILE_RUNS)
    written = layers_in_file(index, own, layers) if own is not None else None
    if written is not None:
        return written
    if not layers:
        _logger.warning("the engine does not report its layers: ops are grouped by structure")
    return nodes_of_layers(index, layers)


def _write_layers(run: TuningRun, plain: Path) -> Path | None:
    """Return the file with the engine's layers of the float model; None if it writes none."""
    request, folder, own_type = run.request, run.folder, _float_type(run)
    if not registry.entry(request.engine).writes_layers:
        return None
    models = {own_type: plain}
    if folder.converted.is_file():  # the requested float type, if another one is tuned
        float_type = written_type(load_model(folder.converted)).value
        if float_type != own_type:
            model = folder.converted.with_name(f"{float_type}.onnx")  # its log gets that name
            with writing(model):
                shutil.copyfile(folder.converted, model)
            models = {float_type: model, own_type: plain}
    is_written = False
    for float_type, model in models.items():
        layers = folder.layer_file(request.model, float_type)
        is_written = write_layer_file(run.engine, model, run.feeds, layers)
        if is_written:
            log = folder / LOGS / request.engine / f"{model.stem}.log"
            copy_log(log, folder.build_log(request.model, float_type))
    return folder.layer_file(request.model, own_type) if is_written else None


def spent_by_group(groups: Sequence[FusionGroup], layers: Sequence[MappedLayer]) -> list[float]:
    """Return the milliseconds of each group; a layer in several groups is divided by nodes."""
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


def shared_layers(groups: Sequence[FusionGroup], layers: Sequence[MappedLayer]) -> list[str]:
    """Return the layer that each group shares with others, the longest; empty where it has its own.

    A part that was compiled as a whole has one time for everything in it.
    """
    names = [_SUBLAYER.sub("", layer.name) for layer in layers]
    holders: defaultdict[str, set[int]] = defaultdict(set)
    for place, group in enumerate(groups):
        for number in group.layers:
            holders[names[number]].add(place)
    found = []
    for group in groups:
        shared = [n for n in group.layers if len(holders[names[n]]) > 1 and layers[n].ms > 0.0]
        longest = max(shared, key=lambda number: layers[number].ms, default=None)
        found.append(names[longest] if longest is not None else "")
    return found


def check_mentions(
    index: GraphIndex, layers: Iterable[MappedLayer], graph_json: str | Path
) -> None:
    """Make sure that layers belong to a model, and warn if only a few do.

    Args:
        index: The model.
        layers: The layers in the file.
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
    """Return the nodes that compute floats from model inputs, for which engines have layers."""
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
