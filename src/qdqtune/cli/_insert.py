"""`qdqtune insert`: quantize chosen ops of a model by hand."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune._parser import ListAction
from qdqtune.cli._flags import (
    add_calibration,
    add_dialect,
    add_format,
    add_inputs,
    add_output,
    input_request,
)
from qdqtune.records._precision import Precision
from qdqtune.records._ranges import CalibrationSource, RangeMethod

if TYPE_CHECKING:
    from qdqtune.cli import AddParser
    from qdqtune.records._quantization import InsertReport


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Quantize chosen ops of a model in an engine's dialect, with calibrated "
        "scales. If the model has Q/DQ already, they are removed first and their scales are kept; "
        "if nothing is chosen, the same tensors are quantized again.",
        examples=(
            "qdqtune insert model.onnx --ops Conv,Add -o quantized.onnx",
            "qdqtune insert model.onnx --ops Conv --calibration_data samples.npz -o quantized.onnx",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    chosen = parser.add_argument_group("what to quantize (all of these together)")
    for flag, metavar, what in (
        ("ops", "OP", "all ops of these types"),
        ("nodes", "NODE", "the nodes of these names"),
        ("tensors", "TENSOR", "the tensors of these names"),
    ):
        chosen.add_argument(f"--{flag}", action=ListAction, default=[], metavar=metavar, help=what)
    chosen.add_argument("--placement", metavar="FILE", help="a placement.json, exactly as it is")
    written = parser.add_argument_group("quantization")
    add_dialect(written, "the engine whose dialect is written; it need not be installed")
    written.add_argument(
        "--high_precision_dtype",
        choices=[precision.value for precision in Precision],
        help="the float type of what isn't quantized (default: the model's own)",
    )
    add_calibration(parser)
    add_inputs(parser)
    parser.add_argument("--save_placement", metavar="FILE", help="also write the placement")
    add_output(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._progress import progress_bar
    from qdqtune.workflows._insert import Choice, insert_qdq

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
    from qdqtune.report._quantization import RANDOM_WARNING, insertion_text

    if form == "json":
        print(json.dumps(report.to_dict(), indent=1))
        if report.calibration is CalibrationSource.RANDOM:
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(insertion_text(report))
