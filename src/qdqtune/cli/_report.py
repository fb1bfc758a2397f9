"""`qdqtune report`: write the report of one run, or of several side by side."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import ReportConfig
from qdqtune.cli._flags import add_config, add_output, config_from
from qdqtune.cli._runner import OK, show
from qdqtune.records._printable import printable

DESCRIPTION = (
    "Write report.html of a tuning run from the records in its folder; nothing is "
    "measured. Several runs are shown side by side."
)
EXAMPLES = (
    "qdqtune report autotuner_output",
    "qdqtune report run_onnxruntime run_openvino -o engines.html",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "folders", metavar="DIR", nargs="+", help="the --output_dir of `qdqtune tune`"
    )
    add_output(parser, "the file to write (default: DIR/report.html)", required=False)
    add_config(parser, ReportConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.workflows._report import report

    config = config_from(options, ReportConfig)
    written = report(options.folders, options.output, force=config.force)
    show(options, written, lambda: printable(f"{written.output}: {written.bytes / 1000:.0f} kB"))
    return OK
