"""The layers that an engine builds the float model to, in a file that can be read again."""

from __future__ import annotations

import contextlib
import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qdqtune.engines.isolated import StoredFeeds, Worker, WorkerFailure
from qdqtune.engines.latency_shares import estimated_shares
from qdqtune.engines.layer_files import map_layers, read_layer_info
from qdqtune.engines.open_model import opened
from qdqtune.graph.atomic_files import copy_file
from qdqtune.graph.index import GraphIndex
from qdqtune.records.errors import OutputError, QdqtuneError
from qdqtune.records.layers import MappedLayer
from qdqtune.records.measurement import LayerTime

_logger = logging.getLogger(__name__)

# How the sublayers of a layer are numbered.
_SUBLAYER = re.compile(r"#\d+$")


def write_layer_file(worker: Worker, plain: Path, feeds: StoredFeeds, target: Path) -> bool:
    """Let an engine write the layers of a model; one that is there already stays.

    Args:
        worker: The engine.
        plain: The model.
        feeds: What it is run on: some build only when they know the shapes.
        target: Where to write.

    Returns:
        Whether there is such a file.
    """
    if target.is_file():
        return True
    staged = worker.scratch / target.name
    options = replace(worker.options, optimized_model_path=str(staged))
    try:
        with opened(worker, plain, options) as model:
            worker.feed(model, feeds)
        copy_file(staged, target)
    except (WorkerFailure, OSError, OutputError) as failure:
        _logger.info("the engine does not write its layers: %s", failure)
        return False
    finally:
        staged.unlink(missing_ok=True)
    return True


def copy_log(log: Path, target: Path) -> None:
    """Keep what an engine said while it built a model, if it said something."""
    with contextlib.suppress(OSError, OutputError):
        copy_file(log, target)


def layers_in_file(
    index: GraphIndex, file: Path, times: Sequence[LayerTime]
) -> list[MappedLayer] | None:
    """The layers in a file, with the times that an engine told of them.

    Args:
        index: The model.
        file: The file.
        times: By layer; those that are not among them take none.

    Returns:
        None if the file can't be read, or is not of this model.
    """
    try:
        layers = map_layers(index, read_layer_info(file))
    except QdqtuneError as error:
        _logger.warning("%s", error.what)
        return None
    if not any(layer.nodes for layer in layers):
        return None
    spent: dict[str, float] = {}
    for each in times:
        spent[each.name] = spent.get(each.name, 0.0) + each.ms
    parts = _parts(index, layers)
    return [
        replace(layer, ms=spent.get(name, 0.0) * part)
        for layer, (name, part) in zip(layers, parts, strict=True)
    ]


def _parts(index: GraphIndex, layers: Sequence[MappedLayer]) -> list[tuple[str, float]]:
    """The engine's name of each layer, and which part of that it is.

    What was compiled as a whole is cut into sublayers, whose parts of the time are guessed by work.
    """
    shares = estimated_shares(index)
    names = [_SUBLAYER.sub("", layer.name) for layer in layers]
    work = [sum(shares.get(node, 0.0) for node in layer.nodes) for layer in layers]
    whole: dict[str, float] = {}
    count = Counter(names)
    for name, each in zip(names, work, strict=True):
        whole[name] = whole.get(name, 0.0) + each
    return [
        (name, each / whole[name] if whole[name] else 1 / count[name])
        for name, each in zip(names, work, strict=True)
    ]
