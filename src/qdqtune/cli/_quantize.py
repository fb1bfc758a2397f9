"""`qdqtune quantize`: quantize a model in one step, by placement rules."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_config, add_format, config_from
from qdqtune.config import QuantizeConfig
from qdqtune.records._ranges import CalibrationSource

if TYPE_CHECKING:
    from qdqtune.cli import AddParser
    from qdqtune.records._quantization import QuantizeResult


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Calibrate a model, place Q/DQ by the rules of the engine that will run it, "
        "check the errors, and write it. Where the engine runs here, the model is timed, and "
        "handed back as it was if it would not be faster.",
        examples=(
            "qdqtune quantize model.onnx --calibration_data samples.npz -o int8.onnx",
            "qdqtune quantize model.onnx --engine tensorrt --op_types_to_exclude Add -o int8.onnx",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="the file to write (default: MODEL.quant.onnx)"
    )
    add_config(parser, QuantizeConfig)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._progress import step_progress
    from qdqtune.workflows._quantize import quantize

    config = config_from(options, QuantizeConfig)
    with step_progress(quiet=options.quiet) as watch:
        result = quantize(options.model, options.output, config, callbacks=[watch])
    _print(result, options)
    return 0


def _print(result: QuantizeResult, options: argparse.Namespace) -> None:
    from qdqtune.report._quantization import RANDOM_WARNING, quantize_text

    if options.format == "json":
        print(json.dumps(result.report.to_dict(), indent=1))
        if result.report.calibration == CalibrationSource.RANDOM.value and not result.kept_float:
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(quantize_text(result.report, every_node=options.verbose > 0))
