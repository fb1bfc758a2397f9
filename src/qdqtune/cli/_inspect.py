"""`qdqtune inspect`: show a model as the search sees it, or as an engine runs and fuses it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli._flags import (
    add_config,
    add_dialect,
    add_dim,
    add_engine,
    add_format,
    add_shapes,
    natural,
    positive,
    shape_request,
)
from qdqtune.config import ShapeRangeConfig
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest

if TYPE_CHECKING:
    from qdqtune.cli import AddParser
    from qdqtune.records._layers import GroupsRecord, LayersRecord

# Flags that only apply when an engine runs the model.
_OF_RUNS = ("sort", "threads", "runs", "engine_option", "min_shapes", "max_shapes")


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Show a model as tuning sees it: which ops can be quantized and why the others "
        "can't, the tree of regions, and their patterns; nothing is run or written. With --layers, "
        "run the model and show the engine's layers: their times, types, and the nodes that each "
        "of them executes. With --groups, show the subgraphs that the engine fuses.",
        examples=(
            "qdqtune inspect model.onnx --max_items 10",
            "qdqtune inspect model.onnx --layers --sort time --threads 1",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    parser.add_argument(
        "--why",
        metavar="TENSOR",
        help="show only where this tensor can be quantized, and why not elsewhere",
    )
    add_dialect(parser, "the engine whose dialect counts, and that runs the model")
    regions = parser.add_argument_group("regions")
    regions.add_argument(
        "--max_sequence_size",
        type=positive,
        default=10,
        metavar="N",
        help="longest sequence of ops inside a composite region (default: %(default)s)",
    )
    regions.add_argument(
        "--all_regions",
        action="store_true",
        help="also show regions in which nothing can be quantized",
    )
    regions.add_argument(
        "--by_shape",
        action="store_true",
        help="tell patterns apart by types and shapes, too, as tuning does",
    )
    regions.add_argument(
        "--max_items",
        type=natural,
        default=40,
        metavar="N",
        help="show at most N regions, patterns, layers or groups; 0 shows all of them (default: "
        "%(default)s)",
    )
    _add_layers(parser)
    sizes = parser.add_argument_group("sizes of open dims (see docs/shapes.md)")
    add_shapes(sizes, "whole shapes of inputs")
    add_dim(sizes)
    add_config(parser, ShapeRangeConfig)
    add_format(parser)
    parser.set_defaults(run=_run)


def _add_layers(parser: argparse.ArgumentParser) -> None:
    layers = parser.add_argument_group("layers and groups")
    layers.add_argument(
        "--layers",
        action="store_true",
        help="run the model on random inputs, and show the engine's layers",
    )
    layers.add_argument(
        "--groups",
        action="store_true",
        help="run the model, optimized as for tuning, and show the subgraphs that the engine fuses",
    )
    layers.add_argument(
        "--graph_json",
        metavar="FILE",
        help="with --groups: read TensorRT's layers from this file, and run nothing",
    )
    layers.add_argument(
        "--sort",
        choices=("execution", "time"),
        help="order of layers and groups; with time, the slowest comes first (default: execution)",
    )
    layers.add_argument("--runs", type=positive, metavar="N", help="timed runs (default: 20)")
    add_engine(parser)


def _run(options: argparse.Namespace) -> int:
    if options.groups:
        return _run_groups(options)
    _refuse(options, "requires --groups", "graph_json")
    return _run_layers(options) if options.layers else _run_regions(options)


def _show(options: argparse.Namespace, record: GroupsRecord | LayersRecord, text: str) -> int:
    """Print a record in the requested format."""
    print(json.dumps(record.to_dict(), indent=1) if options.format == "json" else text)
    return 0


def _run_groups(options: argparse.Namespace) -> int:
    from qdqtune.report._layers import groups_text
    from qdqtune.workflows._layers import DEFAULT_RUNS, groups_of

    _refuse(
        options,
        "can't be used with --groups",
        "layers",
        "why",
        "dialect",
        "all_regions",
        "by_shape",
    )
    if options.graph_json is not None:
        _refuse(options, "can't be used with --graph_json", *_OF_RUNS)
    record = groups_of(
        options.model,
        engine=options.engine,
        engine_options=dict(options.engine_option),
        threads=options.threads,
        runs=options.runs or DEFAULT_RUNS,
        inputs=InputRequest.from_text(options.shapes, options.dim),
        quant_type=options.quant_type,
        graph_json=options.graph_json,
        min_shapes=shape_request(options.min_shapes),
        max_shapes=shape_request(options.max_shapes),
    )
    by_time = options.sort == "time"
    text = groups_text(record, by_time=by_time, max_items=options.max_items)
    return _show(options, record, text)


def _run_layers(options: argparse.Namespace) -> int:
    from qdqtune.report._layers import layers_text
    from qdqtune.workflows._layers import DEFAULT_RUNS, layers_of

    _refuse(options, "can't be used with --layers", "why", "dialect", "all_regions", "by_shape")
    record = layers_of(
        options.model,
        engine=options.engine,
        engine_options=dict(options.engine_option),
        threads=options.threads,
        runs=options.runs or DEFAULT_RUNS,
        inputs=InputRequest.from_text(options.shapes, options.dim),
        min_shapes=shape_request(options.min_shapes),
        max_shapes=shape_request(options.max_shapes),
    )
    by_time = options.sort == "time"
    text = layers_text(record, by_time=by_time, max_items=options.max_items)
    return _show(options, record, text)


def _refuse(options: argparse.Namespace, why: str, *flags: str) -> None:
    """Refuse flags that would have no effect.

    Raises:
        UsageError: If one of them was given.
    """
    for flag in flags:
        if getattr(options, flag):
            raise UsageError(f"--{flag} {why}.", "See `qdqtune inspect --help`.")


def _run_regions(options: argparse.Namespace) -> int:
    from qdqtune.report._inspection import inspection_text
    from qdqtune.workflows._inspect import inspect

    _refuse(options, "requires --layers or --groups", *_OF_RUNS)
    record = inspect(
        options.model,
        engine=options.engine,
        dialect=options.dialect,
        quant_type=options.quant_type,
        inputs=InputRequest.from_text(options.shapes, options.dim),
        max_sequence_size=options.max_sequence_size,
        by_shape=options.by_shape,
        why=options.why,
    )
    if options.format == "json":
        print(json.dumps(record.to_dict(), indent=1))
    else:
        text = inspection_text(record, all_regions=options.all_regions, max_items=options.max_items)
        print(text)
    return 0
