"""`qdqtune strip`: recover the float model inside a Q/DQ model."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_format, add_inputs, add_output, input_request

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Remove every Q/DQ pair from a model. Weights that were stored quantized are "
        "dequantized, or replaced by the original ones with --weights_from.",
        examples=(
            "qdqtune strip quantized.onnx -o float.onnx",
            "qdqtune strip quantized.onnx --weights_from model.onnx -o original.onnx",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a Q/DQ ONNX model")
    parser.add_argument(
        "--weights_from", metavar="FLOAT", help="the float model that has the original weights"
    )
    parser.add_argument(
        "--save_placement", metavar="FILE", help="also write the placement: what was quantized"
    )
    add_inputs(parser)
    add_output(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._quantization import stripping_text
    from qdqtune.workflows._strip import strip_qdq

    report = strip_qdq(
        options.model,
        options.output,
        weights_from=options.weights_from,
        save_placement=options.save_placement,
        inputs=input_request(options),
        force=options.force,
    )
    if options.format == "json":
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print(stripping_text(report))
    return 0
