"""`qdqtune inspect`: show a model as the search sees it, or as an engine runs and fuses it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

from qdqtune._command_configs import GroupsConfig, InspectConfig, LayersConfig
from qdqtune.cli._flags import add_config, add_model, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.options import SWITCH, Config, one_of, option, whole
from qdqtune.records._errors import UsageError

DESCRIPTION = (
    "Show a model as tuning sees it: which ops can be quantized and why the others "
    "can't, the tree of regions, and their patterns; nothing is run or written. With --layers, "
    "run the model and show the engine's layers: their times, types, and the nodes that each "
    "of them executes. With --groups, show the subgraphs that the engine fuses."
)
EXAMPLES = (
    "qdqtune inspect model.onnx --max_items 10",
    "qdqtune inspect model.onnx --layers --sort time --threads 1",
)

_OF_RUNS = ("sort", "threads", "runs", "engine_option", "min_shapes", "max_shapes")
_OF_REGIONS = ("why", "dialect", "all_regions", "by_shape", "regions")


@dataclass(frozen=True, kw_only=True)
class ShownConfig(Config):
    """Options for what is shown."""

    TITLE: ClassVar[str] = LayersConfig.TITLE

    layers: bool = option(
        False, SWITCH, "run the model on random inputs, and show the engine's layers"
    )
    groups: bool = option(
        False, SWITCH,
        "run the model, optimized as for tuning, and show the subgraphs that the engine fuses",
    )  # fmt: skip
    sort: str = option(
        "execution", one_of(("execution", "time")),
        "order of layers and groups; with time, the slowest comes first",
    )  # fmt: skip
    all_regions: bool = option(
        False, SWITCH, "also show regions in which nothing can be quantized",
        title=InspectConfig.TITLE,
    )  # fmt: skip
    max_items: int = option(
        40, whole(0), "show at most N regions, patterns, layers or groups; 0 shows all of them",
        title=InspectConfig.TITLE,
    )  # fmt: skip


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    add_config(parser, InspectConfig, ShownConfig, LayersConfig, GroupsConfig, only_given=True)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    shown = config_from(options, ShownConfig)
    if shown.groups:
        _show_groups(options, shown)
        return OK
    _refuse(options, "requires --groups", "graph_json")
    if shown.layers:
        _show_layers(options, shown)
    else:
        _show_regions(options, shown)
    return OK


def _show_groups(options: argparse.Namespace, shown: ShownConfig) -> None:
    from qdqtune.report._inspection import groups_text
    from qdqtune.report._progress import show_progress

    _refuse(options, "can't be used with --groups", "layers", *_OF_REGIONS)
    config = config_from(options, GroupsConfig)
    if config.graph_json is not None:
        _refuse(options, "can't be used with --graph_json", *_OF_RUNS)
    with show_progress(quiet=options.quiet, first=f"reading {options.model}") as watch:
        from qdqtune.workflows._inspect import groups_of

        record = groups_of(options.model, config, callbacks=[watch])
    by_time, most = shown.sort == "time", shown.max_items
    show(options, record, lambda: groups_text(record, by_time=by_time, max_items=most))


def _show_layers(options: argparse.Namespace, shown: ShownConfig) -> None:
    from qdqtune.report._inspection import layers_text
    from qdqtune.report._progress import show_progress

    _refuse(options, "can't be used with --layers", *_OF_REGIONS)
    config = config_from(options, LayersConfig)
    with show_progress(quiet=options.quiet, first=f"reading {options.model}") as watch:
        from qdqtune.workflows._inspect import layers_of

        record = layers_of(options.model, config, callbacks=[watch])
    by_time, most = shown.sort == "time", shown.max_items
    show(options, record, lambda: layers_text(record, by_time=by_time, max_items=most))


def _show_regions(options: argparse.Namespace, shown: ShownConfig) -> None:
    from qdqtune.report._inspection import inspection_text
    from qdqtune.report._progress import show_progress

    _refuse(options, "requires --layers or --groups", *_OF_RUNS)
    config = config_from(options, InspectConfig)
    with show_progress(quiet=options.quiet, first=f"finding the regions of {options.model}"):
        from qdqtune.workflows._inspect import inspect

        record = inspect(options.model, config)
    every, most = shown.all_regions, shown.max_items
    show(options, record, lambda: inspection_text(record, all_regions=every, max_items=most))


def _refuse(options: argparse.Namespace, why: str, *flags: str) -> None:
    """Refuse flags that would have no effect.

    Raises:
        UsageError: If one of them was given.
    """
    for flag in flags:
        if hasattr(options, flag):
            raise UsageError(f"--{flag} {why}.", "See `qdqtune inspect --help`.")
