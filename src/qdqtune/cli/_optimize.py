"""`qdqtune optimize`: clean up a model and leave its quantization untouched."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_format, add_output

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Fold constants and BatchNorms, and remove nodes that do nothing, are "
        "duplicates, or are never used. Q/DQ nodes are never folded, merged or removed.",
        examples=(
            "qdqtune optimize model.onnx -o optimized.onnx",
            "qdqtune optimize quantized.onnx -o optimized.onnx --force --format json",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    add_output(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._conversions import optimization_text
    from qdqtune.workflows._optimize import optimize_file

    report = optimize_file(options.model, options.output, force=options.force)
    if options.format == "json":
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print(optimization_text(report))
    return 0
