"""`qdqtune shapes`: show a model's inputs and outputs, or fix its dynamic dims."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import ShapesConfig
from qdqtune.cli._flags import add_config, add_model, add_output, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.records._errors import UsageError

DESCRIPTION = (
    "Show the inputs and outputs of a model. With -o, write the model with the "
    "given sizes: all other shapes are inferred from them, and the result is run once."
)
EXAMPLES = (
    "qdqtune shapes model.onnx",
    "qdqtune shapes model.onnx --batch_size 8 -o batch8.onnx",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_model(parser, "an ONNX model")
    add_output(parser, required=False)
    add_config(parser, ShapesConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._conversions import shapes_text
    from qdqtune.report._progress import show_progress

    config, output = config_from(options, ShapesConfig), options.output
    if output is None and (config.inputs is not None or config.batch_size is not None):
        raise UsageError("No output file was given.", "Name it: -o OUT.onnx.")
    with show_progress(quiet=options.quiet, first=f"finding the shapes of {options.model}"):
        from qdqtune.workflows._shapes import fix_shapes, show_shapes

        if output is None:
            report = show_shapes(options.model)
        else:
            report = fix_shapes(
                options.model, output, config.inputs, config.batch_size, config.force
            )
    show(options, report, lambda: shapes_text(report))
    return OK
