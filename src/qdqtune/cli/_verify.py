"""`qdqtune verify`: measure a model again and compare with what was claimed for it."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_engine, add_format, add_inputs, add_runs, input_request, positive

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Check a model against the files that a tuning run wrote beside it: its "
        "SHA-256 and that of the baseline, the Q/DQ edges in placement.json, and error and "
        "speedup, which are measured again. The exit code is 0 if everything holds, and 1 if "
        "anything differs or can't be verified. Programs, paths and libraries that the folder "
        "names are not used: repeat the options of the run that you trust.",
        examples=(
            "qdqtune verify autotuner_output/optimized_final.onnx",
            "qdqtune verify autotuner_output/optimized_final.onnx --engine simulated --runs 20",
        ),
    )
    parser.add_argument("model", metavar="FILE", help="the model to check")
    parser.add_argument(
        "--against", metavar="FLOAT", help="the float model (default: baseline.onnx beside FILE)"
    )
    parser.add_argument(
        "--engine",
        help="the engine that runs the models (default: that of the run, else the one usable here)",
    )
    add_engine(parser)
    add_runs(parser)
    parser.add_argument(
        "--calibration_data",
        "--data",
        metavar="SOURCE",
        help="the calibration data of the run, to measure the error on: an .npy or .npz file, a "
        "folder of them, or module:function (default: random inputs like those of the run)",
    )
    parser.add_argument(
        "--calibration_samples",
        "--samples",
        type=positive,
        metavar="N",
        help="use at most N samples, as the run did",
    )
    add_inputs(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._bench import verify_text
    from qdqtune.report._progress import progress_bar
    from qdqtune.workflows._verify import verify

    with progress_bar("timing", quiet=options.quiet) as progress:
        report = verify(
            options.model,
            against=options.against,
            engine=options.engine,
            engine_options=dict(options.engine_option),
            threads=options.threads,
            runs=options.runs,
            inputs=input_request(options),
            calibration_data=options.calibration_data,
            calibration_samples=options.calibration_samples,
            progress=progress,
        )
    is_json = options.format == "json"
    print(json.dumps(report.to_dict(), indent=1) if is_json else verify_text(report))
    return 0 if report.ok else 1
