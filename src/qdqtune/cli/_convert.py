"""`qdqtune convert`: convert a model to another float precision."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import ConvertConfig
from qdqtune.cli._flags import add_config, add_model, add_output, config_from
from qdqtune.cli._runner import OK, show

DESCRIPTION = (
    "Convert a model, with or without Q/DQ, to another float precision. Ops that "
    "need float32 keep it: they are listed with the reason, and the error of the result is "
    "measured."
)
EXAMPLES = (
    "qdqtune convert model.onnx --to fp16 -o half.onnx",
    "qdqtune convert model.onnx --to fp16 --keep_ops Relu,Add -o half.onnx",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser, "an ONNX model")
    add_output(parser)
    add_config(parser, ConvertConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._conversions import conversion_text
    from qdqtune.report._progress import show_progress

    config = config_from(options, ConvertConfig)
    with show_progress(quiet=options.quiet, first=f"converting {options.model}"):
        from qdqtune.workflows._convert import convert_model

        report = convert_model(options.model, options.output, config)
    show(options, report, lambda: conversion_text(report))
    return OK
