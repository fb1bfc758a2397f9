"""`qdqtune verify`: measure a model anew, beside what was said of it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli.flags import (
    add_engine_option,
    add_format,
    add_inputs,
    add_runs,
    common,
    input_request,
    positive,
)

if TYPE_CHECKING:
    from qdqtune.cli import Commands


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify",
        parents=[common()],
        help="measure a tuned model anew",
        description="Time a model anew against the float model, and check it against what a "
        "tuning run left beside it: the speedup in summary.json, the Q/DQ edges in "
        "placement.json. The exit code is 1 if it is not what was said.",
    )
    parser.add_argument("model", metavar="FILE", help="the model in question")
    parser.add_argument(
        "--against", metavar="FLOAT", help="the float model (default: baseline.onnx beside FILE)"
    )
    parser.add_argument(
        "--engine", help="what runs them (default: that of the run, else the one usable here)"
    )
    add_engine_option(parser)
    parser.add_argument(
        "--threads", type=positive, help="threads per run (default: those of the run)"
    )
    add_runs(parser)
    add_inputs(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report.progress import progress_bar
    from qdqtune.report.verification import verify_text
    from qdqtune.workflows.verification import verify

    with progress_bar("timing", quiet=options.quiet) as progress:
        report = verify(
            options.model,
            against=options.against,
            engine=options.engine,
            engine_options=dict(options.engine_option),
            threads=options.threads,
            runs=options.runs,
            inputs=input_request(options),
            progress=progress,
        )
    is_json = options.format == "json"
    print(json.dumps(report.to_dict(), indent=1) if is_json else verify_text(report))
    return 0 if report.ok else 1
