"""`qdqtune strip`: the float model inside a Q/DQ model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from qdqtune.cli.flags import add_output, common

if TYPE_CHECKING:
    from qdqtune.cli import Commands


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "strip",
        parents=[common()],
        help="take Q/DQ out of a model",
        description="Take every Q/DQ pair out of a model. Weights that were stored quantized get "
        "the values they stand for, or the original ones with --weights_from.",
    )
    parser.add_argument("model", metavar="MODEL", help="a Q/DQ ONNX model")
    parser.add_argument(
        "--weights_from", metavar="FLOAT", help="the float model that has the original weights"
    )
    add_output(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.workflows.quantization import strip_qdq

    reading = strip_qdq(
        options.model, options.output, weights_from=options.weights_from, force=options.force
    )
    tensors = len(reading.placement.tensors)
    print(f"{options.output}: took {reading.pairs} DequantizeLinear off {tensors} tensors")
    if reading.left:
        print(f"{reading.left} Q and DQ nodes stayed: they belong to no pair with constant scales")
    return 0
