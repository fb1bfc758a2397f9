"""`python -m qdqtune.autotune`: tuning with the flags used in the autotuning guides."""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from qdqtune._parser import Parser, group_titled
from qdqtune.cli._flags import (
    NAMES,
    SaidOnce,
    add_config,
    add_format,
    add_limits,
    config_from,
    natural,
    options_for_engine,
    positive,
    take_engine_flags,
)
from qdqtune.cli._runner import FAILED, INTERRUPTED, OK, USAGE, run_safely, set_up_logging, show
from qdqtune.config import REGION, SUBGRAPH, WORKFLOWS, EngineFlagsConfig, TuneConfig
from qdqtune.graph._atomic_files import temporary_place
from qdqtune.options import ENGINE_SPECIFIC, options_of
from qdqtune.records._errors import EngineError, QdqtuneError, UsageError
from qdqtune.search._config import (
    DQ_DTYPES,
    MODE_PRESETS,
    StoreWithExplicitFlag,
    apply_mode_presets,
    get_node_filter_list,
)

_logger = logging.getLogger(__name__)

__all__ = ["apply_mode_presets", "get_parser", "log_benchmark_config", "main", "run_autotune"]


_DEFAULTS = MODE_PRESETS["default"]


class _Mode(SaidOnce):
    """Stores a preset, a workflow, or one of each; a second value must match the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        """Store the value under its kind."""
        kind = "workflow" if values in WORKFLOWS else "_preset"
        self.keep(namespace, kind, values)
        namespace.mode = getattr(namespace, "_preset", None) or values


def get_parser() -> argparse.ArgumentParser:
    """Build the parser; long flags accept dashes for underscores."""
    parser = Parser(
        prog="python -m qdqtune.autotune",
        names=NAMES,
        description="Find where Q/DQ pays in an ONNX model, by measuring, and write the fastest "
        "correct model found, with calibrated scales. The flags are those that autotuners of this "
        "kind have, and those of `qdqtune tune`, which does the same.",
        examples=(
            "python -m qdqtune.autotune --onnx_path model.onnx --output_dir run",
            "python -m qdqtune.autotune --onnx_path model.onnx --mode quick --engine onnxruntime",
        ),
    )
    parser.add_argument(
        "--verbose", "-v", action="store_true", help="log everything that is done, on stderr"
    )
    _add_model(parser)
    _add_strategy(parser)
    _add_quantization(parser)
    _add_benchmark(parser)
    add_config(parser, TuneConfig, EngineFlagsConfig, without=("preset",))  # called mode here
    add_limits(parser)
    add_format(parser)
    parser.set_defaults(command_line="python -m qdqtune.autotune", plugin_libraries=None)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and output")
    group.add_argument(
        "--onnx_path", "--model", "-m", required=True, metavar="MODEL", help="the ONNX model"
    )
    group.add_argument(
        "--output_dir",
        "--output",
        "-o",
        default="./autotuner_output",
        metavar="DIR",
        help="folder for everything that is written; an earlier run in it is resumed "
        "(default: %(default)s)",
    )


def _add_strategy(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("strategy")
    group.add_argument(
        "--mode",
        action=_Mode,
        default="default",
        choices=(*MODE_PRESETS, *WORKFLOWS),
        help="how thorough to be (default: %(default)s). region and subgraph name the workflow, as "
        "--workflow does; give --mode twice, or both flags, to choose both",
    )
    _add_explicit(
        group,
        ("--schemes_per_region", "-s"),
        "num_schemes",
        "measure at most N candidates for each pattern of the model, taken together: the "
        "search spends them where they help most. Without it, as the mode says. No effect in "
        "the subgraph workflow, which tries all of the few schemes of each subgraph",
        type=positive,
        default=_DEFAULTS["schemes_per_region"],
        metavar="N",
    )
    group.add_argument(
        "--pattern_cache",
        dest="pattern_cache_file",
        metavar="FILE",
        help="a pattern cache of an earlier run, whose schemes are tried first",
    )
    group.add_argument(
        "--state_file",
        metavar="FILE",
        help="where the state is written, and what to resume from if it exists, also in another "
        "DIR (default: DIR/autotuner_state.yaml)",
    )
    group.add_argument(
        "--node_filter_list",
        metavar="FILE",
        help="a file of wildcards for node names, one per line: regions without a matching node "
        "are skipped, unless they have the pattern of one with a match",
    )


def _add_explicit(
    group: argparse._ArgumentGroup, flags: Sequence[str], dest: str, text: str, **how: Any
) -> None:
    """Add a flag that records whether it was given."""
    explicit = f"_explicit_{dest}"
    group.add_argument(
        *flags, dest=dest, action=StoreWithExplicitFlag, explicit_attr=explicit, help=text, **how
    )
    group.set_defaults(**{explicit: False})


def _add_quantization(parser: argparse.ArgumentParser) -> None:
    _add_explicit(
        parser.add_argument_group("quantization"),
        ("--default_dq_dtype",),
        "default_dq_dtype",
        "the float type where it can't be deduced; it always can be here, so this has no effect",
        default="float32",
        choices=DQ_DTYPES,
    )


def _add_benchmark(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("benchmark")
    for name, least, what in (
        ("warmup_runs", natural, f"no effect: {_OWN_WARMUP}"),
        (
            "timing_runs",
            positive,
            "timed runs per candidate; without it, as many as the mode needs",
        ),
    ):
        default = _DEFAULTS[name]
        _add_explicit(group, (f"--{name}",), name, what, type=least, default=default, metavar="N")
    group = group_titled(parser, ENGINE_SPECIFIC)
    group.add_argument("--use_trtexec", action="store_true", help="the same as --engine trtexec")
    _add_explicit(
        group,
        ("--timing_cache",),
        "timing_cache",
        "TensorRT's timing cache; without it, one of qdqtune's for each GPU and version",
        default=str(temporary_place() / "trtexec_timing.cache"),
        metavar="FILE",
    )


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
    threads = f", threads: {args.threads}" if args.threads else ""  # not every engine supports it
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
    from qdqtune.autotune.workflows import existing_baseline, existing_cache
    from qdqtune.report._progress import show_progress
    from qdqtune.report._tuning import autotune_text
    from qdqtune.workflows.tuning._tune import tune

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
    with show_progress(eager=True) as watch:
        result = tune(options.onnx_path, config, callbacks=[watch])
    show(options, result, lambda: autotune_text(result))
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
    """Warn about flags that have no effect here, and say why."""
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
    """Warn about flags that only subgraph mode uses, and drop them."""
    from qdqtune.engines import _registry as registry

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
    from qdqtune.engines import _registry as registry

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


if __name__ == "__main__":
    sys.exit(main())
