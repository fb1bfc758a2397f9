"""`qdqtune strip`: recover the float model inside a Q/DQ model."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import StripConfig
from qdqtune.cli._flags import add_config, add_model, add_output, config_from
from qdqtune.cli._runner import OK, show

DESCRIPTION = (
    "Remove every Q/DQ pair from a model. Weights that were stored quantized are "
    "dequantized, or replaced by the original ones with --weights_from."
)
EXAMPLES = (
    "qdqtune strip quantized.onnx -o float.onnx",
    "qdqtune strip quantized.onnx --weights_from model.onnx -o original.onnx",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser, "a Q/DQ ONNX model")
    add_output(parser)
    add_config(parser, StripConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._progress import show_progress
    from qdqtune.report._quantization import stripping_text

    config = config_from(options, StripConfig)
    with show_progress(quiet=options.quiet, first=f"removing Q/DQ from {options.model}"):
        from qdqtune.workflows._strip import strip

        report = strip(options.model, options.output, config)
    show(options, report, lambda: stripping_text(report))
    return OK
