"""`qdqtune convert`: convert a model to another float precision."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune._parser import ListAction
from qdqtune.cli._flags import add_format, add_inputs, add_output, input_request
from qdqtune.records._precision import Precision

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Convert a model, with or without Q/DQ, to another float precision. Ops that "
        "need float32 keep it: they are listed with the reason, and the error of the result is "
        "measured.",
        examples=(
            "qdqtune convert model.onnx --to fp16 -o half.onnx",
            "qdqtune convert model.onnx --to fp16 --keep_ops Relu,Add -o half.onnx",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="an ONNX model")
    parser.add_argument(
        "--to",
        required=True,
        choices=[precision.value for precision in Precision],
        help="the precision to convert to",
    )
    border = parser.add_mutually_exclusive_group()
    border.add_argument(
        "--keep_io",
        action="store_true",
        default=True,
        help="inputs and outputs keep their types (the default)",
    )
    border.add_argument(
        "--no_keep_io", dest="keep_io", action="store_false", help="convert inputs and outputs, too"
    )
    for flag, metavar, what in (
        ("keep_nodes", "NODE", "names of nodes"),
        ("keep_ops", "OP", "op types"),
    ):
        parser.add_argument(
            f"--{flag}",
            action=ListAction,
            default=[],
            metavar=metavar,
            help=f"{what} that keep their precision",
        )
    add_inputs(parser)
    add_output(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._conversions import conversion_text
    from qdqtune.workflows._convert import convert_model

    report = convert_model(
        options.model,
        Precision(options.to),
        options.output,
        keep_io=options.keep_io,
        keep_nodes=options.keep_nodes,
        keep_ops=options.keep_ops,
        request=input_request(options),
        force=options.force,
    )
    if options.format == "json":
        print(json.dumps(report.to_dict(), indent=1))
    else:
        print(conversion_text(report))
    return 0
