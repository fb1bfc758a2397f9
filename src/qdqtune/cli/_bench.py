"""`qdqtune bench`: compare the latency of model files."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli._engine_flags import add_engine_flags, chosen_engine
from qdqtune.cli._flags import add_config, add_format, config_from
from qdqtune.config import BenchConfig

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Time models in alternating blocks of runs; the first model is the baseline. "
        "All of them get the same random inputs.",
        examples=(
            "qdqtune bench model.onnx quantized.onnx",
            "qdqtune bench model.onnx quantized.onnx --engine onnxruntime --threads 1 --runs 50",
        ),
    )
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX models")
    add_config(parser, BenchConfig)
    add_engine_flags(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._bench import bench_text
    from qdqtune.report._progress import progress_bar
    from qdqtune.workflows._bench import bench

    engine, engine_options = chosen_engine(options)
    config = config_from(options, BenchConfig, engine=engine, engine_options=engine_options)
    with progress_bar("timing", quiet=options.quiet) as progress:
        record = bench(options.models, config, progress=progress)
    if options.format == "json":
        print(json.dumps(record.to_dict(), indent=1))
    else:
        print(bench_text(record))
    return 0 if record.ok else 1
