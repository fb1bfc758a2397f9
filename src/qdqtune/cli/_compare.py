"""`qdqtune compare`: where a quantized model loses accuracy."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import ClassVar

from qdqtune._command_configs import CompareConfig
from qdqtune.cli._flags import add_config, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.options import Config, option, whole

DESCRIPTION = (
    "Run a quantized model and its float model on the same inputs, and show how "
    "far the outputs and every quantized layer are off, the worst layers first. The quantized "
    "model can come from any tool that writes Q/DQ."
)
EXAMPLES = (
    "qdqtune compare model.onnx quantized.onnx --data samples.npz",
    "qdqtune compare model.onnx quantized.onnx --engine onnxruntime --top 5",
)


@dataclass(frozen=True, kw_only=True)
class ShownConfig(Config):
    """Options for the table."""

    TITLE: ClassVar[str] = "table"

    top: int = option(20, whole(0), "show the N worst layers; 0 shows all of them")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("float_model", metavar="FLOAT", help="the float model")
    parser.add_argument("quantized_model", metavar="QUANT", help="a Q/DQ model of it")
    add_config(parser, CompareConfig, ShownConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._bench import error_text
    from qdqtune.report._progress import show_progress

    config = config_from(options, CompareConfig)
    with show_progress(
        quiet=options.quiet, first=f"reading {options.float_model} and {options.quantized_model}"
    ) as watch:
        from qdqtune.workflows._compare import compare

        report = compare(options.float_model, options.quantized_model, config, callbacks=[watch])
    show(options, report, lambda: error_text(report, options.top))
    return OK
