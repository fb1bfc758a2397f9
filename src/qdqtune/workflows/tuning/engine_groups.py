"""The fusion groups of the model that is tuned, and the files with the layers behind them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from qdqtune.autotune.subgraphs.fusion_groups import FusionGroup
from qdqtune.engines import registry
from qdqtune.engines.float_types import float_type_in_effect
from qdqtune.graph.disk_errors import writing
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.workflows.tuning import folder as names
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.float_type import written_type
from qdqtune.workflows.tuning.layer_file import copy_log, write_layer_file
from qdqtune.workflows.tuning.layer_groups import find_groups
from qdqtune.workflows.tuning.setup import TuningTarget
from qdqtune.workflows.tuning.subgraph_cache import SubgraphCache


def find_engine_groups(
    ctx: RunContext, target: TuningTarget, index: GraphIndex, plain: Path, cache: SubgraphCache
) -> tuple[FusionGroup, ...]:
    """The engine's groups, or what an earlier run found.

    Args:
        ctx: The run.
        target: What is tuned.
        index: The float model.
        plain: The same as a file.
        cache: What is known, and where groups go.
    """
    if cache.groups is None or not _is_whole(index, cache.groups):
        graph_json = target.request.config.graph_json
        told = None if graph_json is None else Path(graph_json)
        own = _write_layers(ctx, target, plain) if told is None else None
        groups, times = find_groups(index, ctx.engines.engine, plain, target.feeds, told, own)
        structural = sum(group.is_structural for group in groups)
        cache.keep_groups([(group.nodes, times[group.number]) for group in groups], structural)
    assert cache.groups is not None
    ctx.reporter.tell(
        "groups",
        f"{len(index.nodes)} ops in {len(cache.groups)} fusion groups, "
        f"{cache.structural} of them by structure",
    )
    return tuple(FusionGroup(n, nodes, ()) for n, (nodes, _) in enumerate(cache.groups))


def layer_files(ctx: RunContext, target: TuningTarget) -> dict[str, str]:
    """Names of files with layers that this run, or an earlier one, has written."""
    if target.request.config.graph_json is not None:
        return {}
    model, folder, float_type = target.request.model, ctx.folder, _float_type(target)
    files = {
        "graph_json": folder.layer_file(model, float_type),
        "build_log": folder.build_log(model, float_type),
    }
    return {name: file.name for name, file in files.items() if file.is_file()}


def _is_whole(index: GraphIndex, groups: Sequence[tuple[tuple[str, ...], float]]) -> bool:
    """Whether groups have every node of the model, once."""
    nodes = [name for group, _ in groups for name in group]
    return len(nodes) == len(index.node) and index.node.keys() == set(nodes)


def _float_type(target: TuningTarget) -> str:
    """What the engine computes floats in."""
    return float_type_in_effect(target.info, written_type(target.source.model)).value


def _write_layers(ctx: RunContext, target: TuningTarget, plain: Path) -> Path | None:
    """The file with the engine's layers of the float model; None if it writes none."""
    if not registry.entry(target.request.engine).writes_layers:
        return None
    converted = ctx.folder.converted
    if converted.is_file():  # the same of the float type that was wanted, if another one is tuned
        float_type = written_type(load_model(converted)).value
        if float_type != _float_type(target):
            model = converted.with_name(f"{float_type}.onnx")  # so that its log has that name
            with writing(model):
                shutil.copyfile(converted, model)
            _write_layer_file(ctx, target, model, float_type)
    return _write_layer_file(ctx, target, plain, _float_type(target))


def _write_layer_file(
    ctx: RunContext, target: TuningTarget, model: Path, float_type: str
) -> Path | None:
    request, folder = target.request, ctx.folder
    layers = folder.layer_file(request.model, float_type)
    if not write_layer_file(ctx.engines.engine, model, target.feeds, layers):
        return None
    log = folder / names.LOGS / request.engine / f"{model.stem}.log"
    copy_log(log, folder.build_log(request.model, float_type))
    return layers
