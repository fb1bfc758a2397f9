"""`qdqtune optimize`: clean up a model and leave its quantization untouched."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import OverwriteConfig
from qdqtune.cli._flags import add_config, add_model, add_output, config_from
from qdqtune.cli._runner import OK, show

DESCRIPTION = (
    "Fold constants and BatchNorms, and remove nodes that do nothing, are "
    "duplicates, or are never used. Q/DQ nodes are never folded, merged or removed."
)
EXAMPLES = (
    "qdqtune optimize model.onnx -o optimized.onnx",
    "qdqtune optimize quantized.onnx -o optimized.onnx --force --format json",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser)
    add_output(parser)
    add_config(parser, OverwriteConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._conversions import optimization_text
    from qdqtune.report._progress import show_progress

    config = config_from(options, OverwriteConfig)
    with show_progress(quiet=options.quiet, first=f"reading and folding {options.model}"):
        from qdqtune.workflows._optimize import optimize_file

        report = optimize_file(options.model, options.output, force=config.force)
    show(options, report, lambda: optimization_text(report))
    return OK
