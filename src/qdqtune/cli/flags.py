"""Flags that several commands share."""

from __future__ import annotations

import argparse

from qdqtune.cli.config_flags import add_config, typed
from qdqtune.config import CalibrationConfig, EngineConfig, InputConfig
from qdqtune.options import SECONDS, whole
from qdqtune.records.memory_sizes import parse_size
from qdqtune.records.precision import QUANT_TYPES

natural, positive, seconds = typed(whole(0)), typed(whole(1)), typed(SECONDS)


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command."""
    group = parser.add_argument_group("messages").add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="log more on stderr; given twice, log everything",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="log only errors on stderr")
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add `--max_memory` and `--timeout`, which `run_safely` enforces."""
    group = parser.add_argument_group("limits (see docs/reliability.md)")
    group.add_argument(
        "--max_memory",
        type=_memory,
        metavar="SIZE",
        help="memory limit of each process, such as 4GiB (default: the free memory, less a "
        "reserve)",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="time limit of one step, such as opening a model or a block of runs: 300, 90s, 30m or "
        "2h (default: the engine's)",
    )


def _memory(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format`."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="how results are printed"
    )


def add_output(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add `-o/--output` and `--force`."""
    parser.add_argument(
        "-o", "--output", required=required, metavar="OUT", help="the file to write"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def add_dialect(group: argparse._ActionsContainer, engine: str) -> None:
    """Add `--engine`, `--dialect` and `--quant_type` to a command that need not run the model.

    Args:
        group: The argument group to add them to.
        engine: What the engine is for.
    """
    group.add_argument("--engine", default="auto", help=f"{engine} (default: the one usable here)")
    group.add_argument(
        "--dialect", metavar="NAME", help="a dialect by its name (default: the engine's own here)"
    )
    group.add_argument(
        "--quant_type", default="int8", choices=QUANT_TYPES, help="the type (default: %(default)s)"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine`, `--threads` and `--engine_option`, if they aren't there yet."""
    add_config(parser, EngineConfig)


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """Add the flags that set where ranges come from."""
    add_config(parser, CalibrationConfig)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add `--runs`."""
    parser.add_argument(
        "--runs",
        type=positive,
        metavar="N",
        help="timed runs per model (default: as many as take a few seconds per model)",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that set a model's inputs; `input_request` reads them."""
    add_config(parser, InputConfig)
