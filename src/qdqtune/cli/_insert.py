"""`qdqtune insert`: quantize chosen ops of a model by hand."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import InsertConfig
from qdqtune.cli._flags import add_config, add_model, add_output, config_from
from qdqtune.cli._runner import OK, show

DESCRIPTION = (
    "Quantize chosen ops of a model in an engine's dialect, with calibrated "
    "scales. If the model has Q/DQ already, they are removed first and their scales are kept; "
    "if nothing is chosen, the same tensors are quantized again."
)
EXAMPLES = (
    "qdqtune insert model.onnx --ops Conv,Add -o quantized.onnx",
    "qdqtune insert model.onnx --ops Conv --calibration_data samples.npz -o quantized.onnx",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    add_output(parser)
    add_config(parser, InsertConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._progress import show_progress
    from qdqtune.report._quantization import insertion_text

    config = config_from(options, InsertConfig)
    with show_progress(quiet=options.quiet, first=f"reading {options.model}") as watch:
        from qdqtune.workflows._insert import insert

        report = insert(options.model, options.output, config, callbacks=[watch])
    show(options, report, lambda: insertion_text(report))
    return OK
