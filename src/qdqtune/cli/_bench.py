"""`qdqtune bench`: compare the latency of model files."""

from __future__ import annotations

import argparse

from qdqtune.cli._flags import add_config, chosen_engine, config_from
from qdqtune.cli._runner import FAILED, OK, show
from qdqtune.config import BenchConfig, EngineFlagsConfig

DESCRIPTION = (
    "Time models in alternating blocks of runs; the first model is the baseline. "
    "All of them get the same random inputs."
)
EXAMPLES = (
    "qdqtune bench model.onnx quantized.onnx",
    "qdqtune bench model.onnx quantized.onnx --engine onnxruntime --threads 1 --runs 50",
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("models", nargs="+", metavar="MODEL", help="ONNX models")
    add_config(parser, BenchConfig, EngineFlagsConfig)


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._bench import bench_text
    from qdqtune.report._progress import show_progress

    engine, engine_options = chosen_engine(options)
    config = config_from(options, BenchConfig, engine=engine, engine_options=engine_options)
    with show_progress(quiet=options.quiet, first=f"reading {', '.join(options.models)}") as watch:
        from qdqtune.workflows._bench import bench

        record = bench(options.models, config, callbacks=[watch])
    show(options, record, lambda: bench_text(record))
    return OK if record.ok else FAILED
