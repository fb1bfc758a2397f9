"""`qdqtune verify`: measure a model again and compare with its claimed figures."""

from __future__ import annotations

import argparse

from qdqtune._command_configs import VerifyConfig
from qdqtune.cli._flags import add_config, config_from
from qdqtune.cli._runner import FAILED, OK, show

DESCRIPTION = (
    "Check a model against the files that a tuning run wrote beside it: its "
    "SHA-256 and that of the baseline, the Q/DQ edges in placement.json, and error and "
    "speedup, which are measured again. The exit code is 0 if everything holds, and 1 if "
    "anything differs or can't be verified. Programs, paths and libraries that the folder "
    "names are not used: repeat the options of the run that you trust."
)
EXAMPLES = (
    "qdqtune verify autotuner_output/optimized_final.onnx",
    "qdqtune verify autotuner_output/optimized_final.onnx --engine simulated --runs 20",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("model", metavar="FILE", help="the model to check")
    add_config(parser, VerifyConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._bench import verify_text
    from qdqtune.report._progress import show_progress

    config = config_from(options, VerifyConfig)
    with show_progress(quiet=options.quiet, first=f"reading {options.model}") as watch:
        from qdqtune.workflows._verify import verify

        report = verify(options.model, config, callbacks=[watch])
    show(options, report, lambda: verify_text(report))
    return OK if report.ok else FAILED
