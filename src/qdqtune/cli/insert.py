"""`qdqtune insert`: quantize chosen ops of a model by hand."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.cli.flags import (
    add_calibration,
    add_format,
    add_inputs,
    add_output,
    input_request,
)
from qdqtune.cli.lists import ListAction
from qdqtune.records.precision import Precision
from qdqtune.records.ranges import CalibrationSource, RangeMethod

if TYPE_CHECKING:
    from qdqtune.cli import Commands
    from qdqtune.records.insertion import InsertReport


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "insert",
        help="write a model with Q/DQ on chosen ops",
        description="Quantize chosen ops of a model, calibrated, in an engine's dialect. A model "
        "that has Q/DQ already is taken apart first and keeps its scales; with nothing chosen, "
        "what was quantized in it is quantized again.",
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    chosen = parser.add_argument_group("what to quantize (these add up)")
    for flag, what in (("ops", "op types"), ("nodes", "node names"), ("tensors", "tensor names")):
        chosen.add_argument(f"--{flag}", action=ListAction, default=[], metavar="A,B", help=what)
    chosen.add_argument("--placement", metavar="FILE", help="a placement.json, taken as it is")
    parser.add_argument(
        "--engine", default="auto", help="whose dialect to write (default: the one usable here)"
    )
    parser.add_argument("--dialect", help="a dialect by name, instead of the engine's own here")
    parser.add_argument("--quant_type", default="int8", help="int8, uint8 or fp8")
    parser.add_argument(
        "--high_precision_dtype",
        choices=[precision.value for precision in Precision],
        help="float type of what isn't quantized (default: the model's own)",
    )
    add_calibration(parser)
    add_inputs(parser)
    parser.add_argument("--save_placement", metavar="FILE", help="also write the placement")
    add_output(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report.progress import progress_bar
    from qdqtune.workflows.insertion import Choice, insert_qdq

    dtype, method = options.high_precision_dtype, options.calibration_method
    with progress_bar("calibrating", quiet=options.quiet) as progress:
        report = insert_qdq(
            options.model,
            Choice(options.ops, options.nodes, options.tensors, options.placement),
            options.output,
            engine=options.engine,
            dialect=options.dialect,
            quant_type=options.quant_type,
            precision=Precision(dtype) if dtype else None,
            inputs=input_request(options),
            data=options.calibration_data,
            samples=options.calibration_samples,
            method=RangeMethod(method) if method else None,
            save_placement=options.save_placement,
            force=options.force,
            progress=progress,
        )
    _print(report, options.format)
    return 0


def _print(report: InsertReport, form: str) -> None:
    from qdqtune.report.insertion import RANDOM_WARNING, insertion_record, insertion_text

    if form == "json":
        print(json.dumps(insertion_record(report), indent=1))
        if report.calibration is CalibrationSource.RANDOM:
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(insertion_text(report))
