"""`qdqtune inspect`: a model as the search sees it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli.flags import add_dim, add_format, common, natural, positive
from qdqtune.records.inputs import InputRequest

if TYPE_CHECKING:
    from qdqtune.cli import Commands


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "inspect",
        parents=[common()],
        help="show a model's regions, and what can be quantized in it",
        description="Show what a model consists of as tuning sees it: which ops can be quantized "
        "and why the others can't, the tree of regions, and the patterns that they have. Nothing "
        "is run or written.",
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    parser.add_argument(
        "--why",
        metavar="TENSOR",
        help="where this tensor could be quantized, and why not elsewhere, instead of all the rest",
    )
    parser.add_argument(
        "--engine", default="auto", help="whose dialect to look at (default: the one usable here)"
    )
    parser.add_argument("--dialect", help="a dialect by name, instead of the engine's own here")
    parser.add_argument("--quant_type", default="int8", help="int8, uint8 or fp8")
    regions = parser.add_argument_group("regions")
    regions.add_argument(
        "--max_sequence_size",
        type=positive,
        default=10,
        metavar="N",
        help="ops of the longest sequence inside a composite region (default: %(default)s)",
    )
    regions.add_argument(
        "--all_regions",
        action="store_true",
        help="also those in which nothing can be quantized",
    )
    regions.add_argument(
        "--by_shape",
        action="store_true",
        help="let types and shapes be part of a pattern, as they are when tuning",
    )
    regions.add_argument(
        "--max_items",
        type=natural,
        default=40,
        metavar="N",
        help="show at most N regions and N patterns; 0 is all (default: %(default)s)",
    )
    sizes = parser.add_argument_group("sizes of open dims (see docs/shapes.md)")
    sizes.add_argument(
        "--shapes", action="append", default=[], metavar="NAME:1x3x224x224", help="whole shapes"
    )
    add_dim(sizes)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report.inspection import inspection_text
    from qdqtune.workflows.inspection import inspect_model

    record = inspect_model(
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
