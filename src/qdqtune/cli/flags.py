"""Flags that several commands share."""

from __future__ import annotations

import argparse
import re

from qdqtune.cli.config_flags import add_config
from qdqtune.config import CalibrationConfig, EngineConfig, InputConfig
from qdqtune.records.memory_sizes import parse_size

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def add_common(parser: argparse.ArgumentParser) -> None:
    """Add the flags of every command."""
    group = parser.add_argument_group("messages").add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="say more on stderr; twice for everything",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="only errors on stderr")
    add_limits(parser)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add `--max_memory` and `--timeout`, which `run_safely` obeys."""
    group = parser.add_argument_group("limits (see docs/reliability.md)")
    group.add_argument(
        "--max_memory",
        type=_memory,
        metavar="SIZE",
        help="memory that each process may take, such as 4GiB (default: what is free, less a "
        "reserve)",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="longest time for one step, such as opening a model or a block of runs: 300, 90s, 30m "
        "or 2h (default: the engine's)",
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


def add_engine_option(parser: argparse.ArgumentParser) -> None:
    """Add `--engine_option`, which leaves pairs of key and value."""
    add_config(parser, EngineConfig, without=("engine", "threads"))


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where ranges come from."""
    add_config(parser, CalibrationConfig)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add `--runs`."""
    parser.add_argument(
        "--runs",
        type=positive,
        help="timed runs per model (default: what fits into some seconds per model)",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what a model is fed with; `input_request` reads them."""
    add_config(parser, InputConfig)


def positive(text: str) -> int:
    """Parse a number from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")
    return number


def seconds(text: str) -> float:
    """Parse `300`, `90s`, `30m` or `2h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text} is no time; write 300, 90s, 30m or 2h")
    return float(found[1]) * _UNITS_S[found[2]]


def natural(text: str) -> int:
    """Parse a number from 0 up."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number
