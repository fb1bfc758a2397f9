"""`qdqtune insert`: quantize chosen ops of a model by hand."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.cli.flags import add_format, add_output, comma_list, common, natural
from qdqtune.records.ranges import CalibrationSource

if TYPE_CHECKING:
    from qdqtune.cli import Commands
    from qdqtune.records.insertion import InsertReport


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "insert",
        parents=[common()],
        help="write a model with Q/DQ on chosen ops",
        description="Quantize chosen ops of a float model, calibrated, in an engine's dialect.",
    )
    parser.add_argument("model", metavar="MODEL", help="a float ONNX model")
    chosen = parser.add_argument_group("what to quantize (these add up)")
    for flag, what in (("ops", "op types"), ("nodes", "node names"), ("tensors", "tensor names")):
        chosen.add_argument(
            f"--{flag}", type=comma_list, action="extend", default=[], metavar="A,B", help=what
        )
    chosen.add_argument("--placement", metavar="FILE", help="a placement.json, taken as it is")
    parser.add_argument(
        "--engine", default="auto", help="whose dialect to write (default: the one usable here)"
    )
    parser.add_argument("--dialect", help="a dialect by name, instead of the engine's own here")
    parser.add_argument("--quant_type", default="int8", help="int8, uint8 or fp8")
    parser.add_argument("--seed", type=natural, default=0, help="for random calibration inputs")
    parser.add_argument("--save_placement", metavar="FILE", help="also write the placement")
    add_output(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.workflows.quantization import Choice, insert_qdq

    report = insert_qdq(
        options.model,
        Choice(options.ops, options.nodes, options.tensors, options.placement),
        options.output,
        engine=options.engine,
        dialect=options.dialect,
        quant_type=options.quant_type,
        seed=options.seed,
        save_placement=options.save_placement,
        force=options.force,
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
