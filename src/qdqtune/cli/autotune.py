"""`python -m qdqtune.autotune`: tuning with the flags used in the autotuning guides."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdqtune.autotune.presets import apply_mode_presets, get_node_filter_list
from qdqtune.cli.autotune_flags import get_parser
from qdqtune.cli.config_flags import config_from
from qdqtune.cli.engine_flags import options_for_engine, take_engine_flags
from qdqtune.cli.running import FAILED, INTERRUPTED, OK, USAGE, run_safely, set_up_logging
from qdqtune.config import REGION, SUBGRAPH, WORKFLOWS, TuneConfig
from qdqtune.options import options_of
from qdqtune.records.errors import EngineError, QdqtuneError, UsageError

if TYPE_CHECKING:
    from qdqtune.records.tuning import TuneResult

__all__ = ["apply_mode_presets", "get_parser", "log_benchmark_config", "main", "run_autotune"]

_logger = logging.getLogger(__name__)

_WITHOUT_TRTEXEC = (
    "Leave --use_trtexec out and name what measures with --engine; in subgraph mode, --graph_json "
    "brings TensorRT's fusion groups without it."
)
_OWN_WARMUP = "every block of timed runs begins with warmup runs of its own"
_TYPES_ARE_KNOWN = "the float type of every tensor is known, and Q/DQ are written in it"
_FEW = "in subgraph mode each subgraph has few schemes, and all of them are tried"
_BUG = "This is a bug in qdqtune: please report it with the model."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: The command line without the program name; None uses `sys.argv`.

    Returns:
        0 on success, 1 on failure, 2 if the command line is invalid, 130 after Ctrl-C.
    """
    try:
        options = get_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    said = sys.argv[1:] if arguments is None else arguments
    options.command_line = shlex.join(["python", "-m", "qdqtune.autotune", *said])
    set_up_logging(2 if options.verbose else 0, quiet=False)
    return run_safely(lambda: _without_traceback(options), options, usage=FAILED)


def run_autotune() -> int:
    """Run the command with this process's arguments.

    Returns:
        The exit code.
    """
    return main()


def log_benchmark_config(args: argparse.Namespace) -> None:
    """Log the engine that measures and the number of runs.

    Args:
        args: The parsed arguments.
    """
    threads = f", threads: {args.threads}" if args.threads else ""  # not every engine takes it
    _logger.info("engine: %s%s", _engine(args), threads)
    _logger.info(
        "mode %s: %s schemes per region, %s timed runs",
        args.mode,
        args.num_schemes if args._explicit_num_schemes else "the mode's",
        args.timing_runs if args._explicit_timing_runs else "the mode's",
    )


def _without_traceback(options: argparse.Namespace) -> int:
    """Run the command; report internal errors like any other, with the traceback in the log."""
    try:
        return _run(options)
    except (QdqtuneError, OSError, MemoryError):
        raise
    except Exception as error:
        _logger.debug("where it happened", exc_info=True)
        raise QdqtuneError(f"{type(error).__name__}: {error}", _BUG) from error


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report.tune_progress import tune_progress
    from qdqtune.workflows.region_patterns import existing_baseline, existing_cache
    from qdqtune.workflows.tune import tune

    workflow = _workflow(options)
    engine, engine_options = _checked_engine(options)
    _drop_what_is_not_used(options, engine, workflow)
    log_benchmark_config(options)
    config = config_from(
        options,
        TuneConfig,
        workflow=workflow,
        engine=engine,
        engine_options=engine_options,
        preset=options.mode,
        schemes_per_region=options.num_schemes if options._explicit_num_schemes else None,
        timing_runs=options.timing_runs if options._explicit_timing_runs else None,
        qdq_baseline=existing_baseline(options.qdq_baseline),
        pattern_cache=existing_cache(options.pattern_cache_file),
        state_file=options.state_file,
        output_dir=options.output_dir,
        region_filter=get_node_filter_list(options.node_filter_list) or (),
        command=options.command_line,
    )
    with tune_progress(quiet=False) as watch:
        result = tune(options.onnx_path, config, callbacks=[watch])
    _print(result, options.format)
    return INTERRUPTED if result.summary.stopped == "interrupted" else OK


def _workflow(options: argparse.Namespace) -> str:
    """Return the workflow; from here on the mode only sets how thorough the search is."""
    workflow = getattr(options, "workflow", REGION)
    _warn_of_no_effect(options, workflow)
    if options.mode in WORKFLOWS:
        options.mode = "default"
    apply_mode_presets(options)
    return str(workflow)


def _warn_of_no_effect(options: argparse.Namespace, workflow: str) -> None:
    """Warn of flags that have no effect here, and say why."""
    for is_given, flag, why in (
        (options._explicit_warmup_runs, "warmup_runs", _OWN_WARMUP),
        (options._explicit_default_dq_dtype, "default_dq_dtype", _TYPES_ARE_KNOWN),
        (options._explicit_num_schemes and workflow == SUBGRAPH, "schemes_per_region", _FEW),
    ):
        if is_given:
            _logger.warning("--%s has no effect: %s", flag, why)


def _engine(options: argparse.Namespace) -> str:
    return "trtexec" if options.use_trtexec else str(options.engine)


def _drop_what_is_not_used(options: argparse.Namespace, engine: str, workflow: str) -> None:
    """Warn of flags that only subgraph mode uses, and drop them."""
    from qdqtune.engines import registry

    if workflow == SUBGRAPH:
        return
    unused = [known.dest for _, known in options_of(TuneConfig) if known.mode == SUBGRAPH]
    if not registry.entry(engine).takes_shape_ranges:
        unused += ["min_shapes", "max_shapes"]
    for name in unused:
        if getattr(options, name, []) != []:
            _logger.warning("--%s belongs to subgraph mode: it is not used", name)
            delattr(options, name)


def _checked_engine(options: argparse.Namespace) -> tuple[str, dict[str, str]]:
    """Return the engine and its options after checking the engine-specific flags."""
    from qdqtune.engines import registry

    program = registry.GUIDES_PROGRAM
    if options.use_trtexec and options.engine not in (registry.AUTO, program):
        raise UsageError(
            f"--use_trtexec contradicts --engine {options.engine}.", "Leave one of them out."
        )
    timing_cache = options.timing_cache if options._explicit_timing_cache else None
    words = take_engine_flags(options, timing_cache)
    given = dict(options.engine_option)
    try:
        engine = registry.resolve(_engine(options), given)
    except EngineError as error:
        if not options.use_trtexec:
            raise
        raise EngineError(error.what, f"{error.hint}. {_WITHOUT_TRTEXEC}") from None
    return engine, options_for_engine(options, engine, words)


def _print(result: TuneResult, form: str) -> None:
    from qdqtune.report.autotune import autotune_text
    from qdqtune.report.insertion import RANDOM_WARNING
    from qdqtune.report.tuning import is_calibrated_on_random

    if form == "json":
        print(json.dumps(result.summary.to_dict(), indent=1))
        if is_calibrated_on_random(result.summary):
            _logger.warning(RANDOM_WARNING)
    else:
        print(autotune_text(result))
