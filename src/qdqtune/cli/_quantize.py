"""`qdqtune quantize`: quantize a model in one step, by placement rules."""

from __future__ import annotations

import argparse

from qdqtune.cli._flags import add_config, add_model, add_output, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.config import QuantizeConfig

DESCRIPTION = (
    "Calibrate a model, place Q/DQ by the rules of the engine that will run it, "
    "check the errors, and write it. Where the engine runs here, the model is timed, and "
    "handed back as it was if it would not be faster."
)
EXAMPLES = (
    "qdqtune quantize model.onnx --calibration_data samples.npz -o int8.onnx",
    "qdqtune quantize model.onnx --engine tensorrt --op_types_to_exclude Add -o int8.onnx",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    add_output(parser, "the file to write (default: MODEL.quant.onnx)", required=False)
    add_config(parser, QuantizeConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._progress import show_progress
    from qdqtune.report._quantization import quantize_text

    config = config_from(options, QuantizeConfig)
    with show_progress(quiet=options.quiet, first=f"reading {options.model}") as watch:
        from qdqtune.workflows._quantize import quantize

        report = quantize(
            options.model, options.output, config, callbacks=[watch], command=options.command_line
        ).report
    page = f"\nReport: {config.report}" if config.report is not None else ""
    show(options, report, lambda: quantize_text(report, every_node=options.verbose > 0) + page)
    return OK
