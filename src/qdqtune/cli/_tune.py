"""`qdqtune tune`: find the Q/DQ placement that makes a model fastest, by measuring."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.cli._engine_flags import add_engine_flags, chosen_engine
from qdqtune.cli._flags import add_config, add_format, config_from
from qdqtune.config import TuneConfig

if TYPE_CHECKING:
    from qdqtune.cli import AddParser
    from qdqtune.records._tuning import TuneResult

_OK, _INTERRUPTED = 0, 130


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Try Q/DQ placements, measure each on the engine that will run the model, and "
        "write the fastest correct model found, with calibrated scales. A model that is not faster "
        "than the one given is never written. Ctrl-C keeps the best found so far.",
        examples=(
            "qdqtune tune model.onnx --calibration_data samples.npz",
            "qdqtune tune model.onnx --engine onnxruntime --threads 1 --budget 10m -o run",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    parser.add_argument(
        "--dry_run", action="store_true", help="say what would be done; measure and write nothing"
    )
    add_format(parser)
    add_config(parser, TuneConfig)
    add_engine_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    engine, engine_options = chosen_engine(options)
    config = config_from(options, TuneConfig, engine=engine, engine_options=engine_options)
    if options.dry_run:
        return _plan(options, config)
    from qdqtune.report._progress import tune_progress
    from qdqtune.workflows.tuning._tune import tune

    with tune_progress(quiet=options.quiet) as watch:
        result = tune(options.model, config, callbacks=[watch], command=options.command_line)
    _print(result, options.format)
    return _INTERRUPTED if result.summary.stopped == "interrupted" else _OK


def _plan(options: argparse.Namespace, config: TuneConfig) -> int:
    from qdqtune.report._tuning import plan_text
    from qdqtune.workflows.tuning._tune import plan_tune

    plan = plan_tune(options.model, config)
    is_json = options.format == "json"
    print(json.dumps(plan.to_dict(), indent=1) if is_json else plan_text(plan))
    return _OK


def _print(result: TuneResult, form: str) -> None:
    from qdqtune.report._quantization import RANDOM_WARNING
    from qdqtune.report._tuning import is_calibrated_on_random, tune_text

    if form == "json":
        print(json.dumps(result.summary.to_dict(), indent=1))
        if is_calibrated_on_random(result.summary):
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(tune_text(result))
