"""`qdqtune compare`: where a quantized model loses accuracy."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_engine, add_format, add_inputs, input_request, natural, positive

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Run a quantized model and its float model on the same inputs, and show how "
        "far the outputs and every quantized layer are off, the worst layers first. The quantized "
        "model can come from any tool that writes Q/DQ.",
        examples=(
            "qdqtune compare model.onnx quantized.onnx --data samples.npz",
            "qdqtune compare model.onnx quantized.onnx --engine onnxruntime --top 5",
        ),
    )
    parser.add_argument("float_model", metavar="FLOAT", help="the float model")
    parser.add_argument("quantized_model", metavar="QUANT", help="a Q/DQ model of it")
    parser.add_argument(
        "--data",
        "--calibration_data",
        metavar="SOURCE",
        help="data to run on: an .npy or .npz file, a folder of them, or module:function "
        "(default: random inputs)",
    )
    parser.add_argument(
        "--samples",
        "--calibration_samples",
        type=positive,
        metavar="N",
        help="use N samples (default: at most 32 from SOURCE, or 8 random ones)",
    )
    parser.add_argument(
        "--engine",
        help="the engine whose kernels compute the outputs (default: each op is run as it is "
        "written)",
    )
    add_engine(parser)
    parser.add_argument(
        "--top",
        type=natural,
        default=20,
        metavar="N",
        help="show the N worst layers; 0 shows all of them (default: %(default)s)",
    )
    add_inputs(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._error_report import RANDOM_WARNING, error_text
    from qdqtune.report._progress import progress_bar
    from qdqtune.workflows._compare import compare

    with progress_bar("comparing", quiet=options.quiet) as progress:
        report = compare(
            options.float_model,
            options.quantized_model,
            data=options.data,
            samples=options.samples,
            engine=options.engine,
            engine_options=dict(options.engine_option),
            threads=options.threads,
            inputs=input_request(options),
            progress=progress,
        )
    if options.format == "json":
        print(json.dumps(report.to_dict(), indent=1))
        if report.is_on_random_inputs:
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(error_text(report, options.top))
    return 0
