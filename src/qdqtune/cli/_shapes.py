"""`qdqtune shapes`: show a model's inputs and outputs, or fix its dynamic dims."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune._parser import InputItemsAction
from qdqtune.cli._flags import add_dim, add_format, add_output, positive
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Show the inputs and outputs of a model. With -o, write the model with the "
        "given sizes: all other shapes are inferred from them, and the result is run once.",
        examples=(
            "qdqtune shapes model.onnx",
            "qdqtune shapes model.onnx --batch_size 8 -o batch8.onnx",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    sizes = parser.add_argument_group("sizes to fix")
    sizes.add_argument(
        "--batch_size", type=positive, metavar="N", help="the leading dim of every input"
    )
    sizes.add_argument(
        "--set",
        "--shapes",
        dest="shapes",
        action=InputItemsAction,
        item="shape",
        default=[],
        metavar="NAME:8x3x224x224",
        help="whole shapes of inputs; ? keeps a dim as the model has it",
    )
    add_dim(sizes)
    add_output(parser, required=False)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._conversions import shapes_text
    from qdqtune.workflows._shapes import fix_shapes, show_shapes

    request = InputRequest.from_text(options.shapes, options.dim)
    if options.output is not None:
        report = fix_shapes(
            options.model, options.output, request, options.batch_size, options.force
        )
    elif request.shapes or request.dims or options.batch_size is not None:
        raise UsageError("No output file was given.", "Name it: -o OUT.onnx.")
    else:
        report = show_shapes(options.model)
    print(
        json.dumps(report.to_dict(), indent=1) if options.format == "json" else shapes_text(report)
    )
    return 0
