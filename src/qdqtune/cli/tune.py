"""`qdqtune tune`: find the Q/DQ placement that makes a model fastest, by measuring."""

from __future__ import annotations

import argparse
import json
import logging
from typing import TYPE_CHECKING

from qdqtune.autotune.presets import REGION, SUBGRAPH, WORKFLOWS
from qdqtune.cli.engine_flags import add_engine_flags, chosen_engine
from qdqtune.cli.flags import (
    add_calibration,
    add_engine_option,
    add_format,
    add_inputs,
    add_resume,
    input_request,
    positive,
    seconds,
    shape_request,
)
from qdqtune.cli.lists import ListAction
from qdqtune.cli.numbers import decibels, not_negative, ratio
from qdqtune.cli.subgraph_flags import ONLY_SUBGRAPH, SaidOnce, add_subgraph
from qdqtune.records.accuracy import DEFAULT_MIN_SQNR_DB
from qdqtune.records.errors import UsageError
from qdqtune.records.precision import AUTO, CHOICES
from qdqtune.records.ranges import RangeMethod
from qdqtune.records.tuning import (
    DEFAULT_MAX_DROP,
    DEFAULT_OUTPUT_DIR,
    DEFAULT_THRESHOLD,
)

if TYPE_CHECKING:
    from qdqtune.cli import Commands
    from qdqtune.records.tuning import TuneResult

_OK, _INTERRUPTED = 0, 130


def add_parser(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "tune",
        help="find where quantization pays in a model, by measuring",
        description="Try Q/DQ placements, measure each on the engine that will run the model, and "
        "write the fastest correct model found, with calibrated scales. What is not faster than "
        "the model as given is never written. Ctrl-C keeps the best found so far.",
        examples=(
            "qdqtune tune model.onnx --calibration_data samples.npz",
            "qdqtune tune model.onnx --engine onnxruntime --threads 1 --budget 10m -o run",
        ),
    )
    parser.add_argument("model", metavar="MODEL", help="a float or Q/DQ ONNX model")
    parser.add_argument(
        "-o",
        "--output_dir",
        default=DEFAULT_OUTPUT_DIR,
        metavar="DIR",
        help="folder for everything that is written; a run in it is gone on with "
        "(default: %(default)s)",
    )
    add_resume(parser).add_argument(
        "--force", action="store_true", help="replace what is in DIR, an earlier run included"
    )
    parser.add_argument("--engine", default="auto", help="what runs it (default: %(default)s)")
    add_engine_option(parser)
    parser.add_argument(
        "--threads", type=positive, help="threads per run (default: the engine's own)"
    )
    parser.add_argument("--quant_type", default="int8", help="int8, uint8 or fp8")
    parser.add_argument(
        "--precision",
        choices=CHOICES,
        default=AUTO,
        help="the float type to tune it in; auto is float16 for engines that take types as they "
        "are written, and the model's own for all others (default: %(default)s)",
    )
    _add_search(parser)
    add_subgraph(parser)
    add_engine_flags(parser)
    _add_accuracy(parser)
    add_calibration(parser)
    add_inputs(parser)
    add_format(parser)
    parser.set_defaults(run=_run)


def _add_search(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("search")
    group.add_argument(
        "--workflow",
        "--mode",
        action=SaidOnce,
        choices=WORKFLOWS,
        help="region tries placements on the whole model; subgraph profiles the pieces that the "
        f"engine fuses and assembles them, with far fewer builds (default: {REGION})",
    )
    group.add_argument(
        "--preset",
        default="default",
        choices=("quick", "default", "extensive"),
        help="how thorough to be (default: %(default)s)",
    )
    group.add_argument(
        "--budget",
        type=seconds,
        metavar="300|30m|2h",
        help="what the whole run may take; the search ends in time to check and write the best",
    )
    group.add_argument(
        "--max_benchmarks", type=positive, metavar="N", help="try at most N candidates"
    )
    group.add_argument(
        "--performance_threshold",
        type=ratio,
        default=DEFAULT_THRESHOLD,
        metavar="X",
        help="keep the model as given if what was found is not X times as fast "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--qdq_baseline",
        metavar="FILE",
        help="the model quantized by somebody else: begin with what is quantized there, too",
    )
    group.add_argument(
        "--pattern_cache",
        metavar="FILE",
        help="the pattern cache of another run: try what it would do as well",
    )
    group.add_argument(
        "--node_filter",
        action=ListAction,
        default=[],
        metavar="A*,B*",
        help="quantize only ops whose names match one of these wildcards, and what is like them; "
        "python -m qdqtune.autotune --node_filter_list filters regions",
    )
    group.add_argument(
        "--no_optimize",
        action="store_true",
        help="take the graph as it is: don't fold constants and BatchNorms first",
    )
    group.add_argument(
        "--dry_run", action="store_true", help="say what would be done; measure and write nothing"
    )


def _add_accuracy(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how accurate it must be")
    group.add_argument(
        "--min_sqnr",
        type=decibels,
        default=DEFAULT_MIN_SQNR_DB,
        metavar="DB",
        help="least signal-to-noise ratio of the outputs against float, or none "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--evaluate",
        metavar="module:function",
        help="a function that takes a model's path and returns a metric; more is better",
    )
    group.add_argument(
        "--max_drop",
        type=not_negative,
        default=DEFAULT_MAX_DROP,
        metavar="X",
        help="how much lower than float's that metric may be (default: %(default)s)",
    )


def _run(options: argparse.Namespace) -> int:
    options.workflow = options.workflow or REGION
    _check_workflow(options)
    if options.dry_run:
        return _plan(options)
    from qdqtune.report.tune_progress import tune_progress
    from qdqtune.workflows.tune import tune

    engine, engine_options = chosen_engine(options)
    method = options.calibration_method
    with tune_progress(quiet=options.quiet) as watch:
        result = tune(
            options.model,
            engine=engine,
            engine_options=engine_options,
            threads=options.threads,
            preset=options.preset,
            seed=options.seed,
            budget_s=options.budget,
            max_benchmarks=options.max_benchmarks,
            quant_type=options.quant_type,
            inputs=input_request(options),
            calibration_data=options.calibration_data,
            calibration_samples=options.calibration_samples,
            calibration_method=RangeMethod(method) if method else None,
            min_sqnr_db=options.min_sqnr,
            evaluate=options.evaluate,
            max_drop=options.max_drop,
            performance_threshold=options.performance_threshold,
            qdq_baseline=options.qdq_baseline,
            pattern_cache=options.pattern_cache,
            node_filter=options.node_filter,
            optimize=not options.no_optimize,
            workflow=options.workflow,
            graph_json=options.graph_json,
            incremental_validation=options.incremental_validation is not False,
            min_shapes=shape_request(options.min_shapes),
            max_shapes=shape_request(options.max_shapes),
            precision=options.precision,
            output_dir=options.output_dir,
            resume=options.resume,
            restart=options.restart,
            force=options.force,
            callbacks=[watch],
            command=options.command_line,
        )
    _print(result, options.format)
    return _INTERRUPTED if result.summary.stopped == "interrupted" else _OK


def _check_workflow(options: argparse.Namespace) -> None:
    """Let nothing be asked for that the workflow would not do."""
    if options.workflow == SUBGRAPH:
        return
    for name in ONLY_SUBGRAPH:
        value = getattr(options, name)
        if value is not None:
            flag = f"--no_{name}" if value is False else f"--{name}"
            raise UsageError(
                f"{flag} is of subgraph mode.",
                f"Add --workflow {SUBGRAPH}, or leave {flag} out.",
            )


def _plan(options: argparse.Namespace) -> int:
    from qdqtune.report.tuning import plan_text
    from qdqtune.workflows.tune import plan_tune

    engine, engine_options = chosen_engine(options)
    plan = plan_tune(
        options.model,
        engine=engine,
        engine_options=engine_options,
        preset=options.preset,
        max_benchmarks=options.max_benchmarks,
        quant_type=options.quant_type,
        inputs=input_request(options),
        calibration_data=options.calibration_data,
        node_filter=options.node_filter,
        optimize=not options.no_optimize,
        workflow=options.workflow,
        graph_json=options.graph_json,
        min_shapes=shape_request(options.min_shapes),
        max_shapes=shape_request(options.max_shapes),
        evaluate=options.evaluate,
        precision=options.precision,
    )
    is_json = options.format == "json"
    print(json.dumps(plan.to_dict(), indent=1) if is_json else plan_text(plan))
    return _OK


def _print(result: TuneResult, form: str) -> None:
    from qdqtune.report.insertion import RANDOM_WARNING
    from qdqtune.report.tuning import is_calibrated_on_random, tune_text

    if form == "json":
        print(json.dumps(result.summary.to_dict(), indent=1))
        if is_calibrated_on_random(result.summary):
            logging.getLogger("qdqtune").warning(RANDOM_WARNING)
    else:
        print(tune_text(result))
