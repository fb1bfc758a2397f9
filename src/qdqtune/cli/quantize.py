"""`qdqtune quantize`: a quantized model in one go, by rules."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.cli.flags import add_calibration, add_engine_option, add_format, add_inputs, positive
from qdqtune.cli.input_flags import input_request
from qdqtune.cli.lists import ListAction
from qdqtune.cli.numbers import decibels, ratio
from qdqtune.records.accuracy import DEFAULT_MIN_SQNR_DB
from qdqtune.records.precision import Precision
from qdqtune.records.ranges import CalibrationSource
from qdqtune.records.tuning import DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from qdqtune.cli import Commands
    from qdqtune.records.quantization import QuantizeResult

_FILTERS = (
    ("nodes_to_exclude", "nodes that stay float"),
    ("nodes_to_quantize", "quantize these nodes only, and what is between them"),
    ("op_types_to_exclude", "op types that stay float"),
    ("op_types_to_quantize", "quantize these op types only"),
)


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "quantize",
        help="quantize a model in one go, by rules",
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
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument(
        "--engine",
        default="auto",
        help="whose rules and dialect; it need not be installed (tensorrt8 is TensorRT 8)",
    )
    parser.add_argument("--dialect", help="a dialect by name, instead of the engine's own here")
    parser.add_argument(
        "--quantize_mode", "--quant_type", default="int8", help="int8 (default), uint8 or fp8"
    )
    channels = parser.add_mutually_exclusive_group()
    channels.add_argument(
        "--per_channel",
        action="store_true",
        default=True,
        help="one scale per channel of a weight (default)",
    )
    channels.add_argument(
        "--no_per_channel",
        dest="per_channel",
        action="store_false",
        help="one scale for the whole of a weight",
    )
    parser.add_argument(
        "--high_precision_dtype",
        choices=[precision.value for precision in Precision],
        help="float type of what isn't quantized (default: the model's own)",
    )
    filters = parser.add_argument_group("what to quantize (regular expressions; see the docs)")
    for flag, what in _FILTERS:
        filters.add_argument(
            f"--{flag}", nargs="+", action=ListAction, default=[], metavar="REGEX", help=what
        )
    add_calibration(parser)
    add_inputs(parser)
    checks = parser.add_argument_group("checks")
    checks.add_argument(
        "--min_sqnr",
        type=decibels,
        default=DEFAULT_MIN_SQNR_DB,
        metavar="DB",
        help="ops and outputs farther from float stay float; none asks for nothing "
        "(default: %(default)s)",
    )
    checks.add_argument(
        "--performance_threshold",
        type=_threshold,
        default=DEFAULT_THRESHOLD,
        metavar="RATIO",
        help="hand the model back below this speedup; none doesn't time it (default: %(default)s)",
    )
    checks.add_argument("--threads", type=positive, help="threads per run, for timing")
    add_engine_option(parser)
    search = parser.add_argument_group("instead of rules (see docs/tune.md)")
    search.add_argument(
        "--autotune",
        nargs="?",
        const="default",
        choices=("quick", "default", "extensive"),
        help="search for the placement by measuring; what was measured is written",
    )
    search.add_argument(
        "--autotune_output_dir", metavar="DIR", help="the run's folder (default: OUT_autotune)"
    )
    parser.add_argument(
        "--no_optimize", action="store_true", help="don't fold and clean the graph first"
    )
    parser.add_argument("--save_placement", metavar="FILE", help="also write the placement")
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report.tune_progress import step_progress
    from qdqtune.workflows.quantization import quantize

    with step_progress(quiet=options.quiet) as watch:
        result = quantize(
            options.model,
            options.output,
            engine=options.engine,
            engine_options=dict(options.engine_option),
            threads=options.threads,
            dialect=options.dialect,
            quantize_mode=options.quantize_mode,
            calibration_data=options.calibration_data,
            calibration_samples=options.calibration_samples,
            calibration_method=options.calibration_method,
            inputs=input_request(options),
            nodes_to_quantize=options.nodes_to_quantize,
            nodes_to_exclude=options.nodes_to_exclude,
            op_types_to_quantize=options.op_types_to_quantize,
            op_types_to_exclude=options.op_types_to_exclude,
            per_channel=options.per_channel,
            high_precision_dtype=options.high_precision_dtype,
            min_sqnr_db=options.min_sqnr,
            performance_threshold=options.performance_threshold,
            optimize=not options.no_optimize,
            autotune=options.autotune,
            autotune_output_dir=options.autotune_output_dir,
            save_placement=options.save_placement,
            force=options.force,
            callbacks=[watch],
        )
    _print(result, options)
    return 0


def _print(result: QuantizeResult, options: argparse.Namespace) -> None:
    from qdqtune.report.insertion import RANDOM_WARNING
    from qdqtune.report.quantization import quantize_text

    if options.format == "json":
        print(json.dumps(result.report.to_dict(), indent=1))
        if result.report.calibration == CalibrationSource.RANDOM.value and not result.kept_float:
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(quantize_text(result.report, every_node=options.verbose > 0))


def _threshold(text: str) -> float | None:
    return None if text.lower() == "none" else ratio(text)
