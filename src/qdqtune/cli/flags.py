"""Flags that several commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

from qdqtune.cli.lists import AssignmentsAction, InputItemsAction
from qdqtune.cli.parser import ENGINE_SPECIFIC, group_titled
from qdqtune.records.inputs import InputRequest
from qdqtune.records.memory_sizes import parse_size
from qdqtune.records.ranges import RangeMethod

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
    group_titled(parser, ENGINE_SPECIFIC).add_argument(
        "--engine_option",
        action=AssignmentsAction,
        type=_key_value,
        default=[],
        metavar="KEY=VALUE",
        help="options of the engine's own",
    )


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where ranges come from."""
    group = parser.add_argument_group("calibration (see docs/calibration.md)")
    group.add_argument(
        "--calibration_data",
        metavar="SOURCE",
        help="an .npy or .npz file, a folder of them, or module:function (default: random inputs)",
    )
    group.add_argument(
        "--calibration_samples", type=positive, metavar="N", help="use at most this many samples"
    )
    group.add_argument(
        "--calibration_method",
        type=_range_method,
        choices=[method.value for method in RangeMethod],
        help="how ranges follow from the data (default: all are tried, the best is taken)",
    )


def _range_method(text: str) -> str:
    """The name that a method has now; what is none is for the parser to tell."""
    try:
        return RangeMethod(text).value
    except ValueError:
        return text


def add_resume(parser: argparse._ActionsContainer) -> argparse._MutuallyExclusiveGroup:
    """Add `--resume` and `--restart`, of which one may be given; returns their group."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--resume",
        choices=("auto", "never"),
        default="auto",
        help="go on with a run in DIR, or refuse to (default: %(default)s)",
    )
    group.add_argument(
        "--restart", action="store_true", help="begin anew; a run in DIR is kept in DIR/earlier"
    )
    return group


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add `--runs`."""
    parser.add_argument(
        "--runs",
        type=positive,
        help="timed runs per model (default: what fits into some seconds per model)",
    )


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what a model is fed with; `input_request` reads them."""
    group = parser.add_argument_group("inputs (what is not said is made up; see docs/shapes.md)")
    add_shapes(group, "shapes of inputs; ? is a dim as the model has it")
    add_dim(group)
    group.add_argument(
        "--input_range",
        action=InputItemsAction,
        item="range",
        default=[],
        metavar="NAME:LOW:HIGH",
        help="values of an input, both ends included",
    )
    group.add_argument("--seed", type=natural, default=0, help="for random inputs")


def add_shapes(group: argparse._ActionsContainer, what: str) -> None:
    """Add `--shapes` and its other name.

    Args:
        group: Where it goes.
        what: Its help.
    """
    group.add_argument(
        "--shapes",
        "--opt_shapes",
        action=InputItemsAction,
        item="shape",
        default=[],
        metavar="NAME:1x3x224x224",
        help=what,
    )


def add_shape_ranges(group: argparse._ActionsContainer) -> None:
    """Add `--min_shapes` and `--max_shapes`; `shape_request` reads them."""
    for name, which in (("min_shapes", "smallest"), ("max_shapes", "largest")):
        group.add_argument(
            f"--{name}",
            action=InputItemsAction,
            item="shape",
            metavar="NAME:1x3x224x224",
            help=f"the {which} shapes of inputs that the model will get; --shapes are timed",
        )


def shape_request(texts: Sequence[str] | None) -> InputRequest | None:
    """What `--min_shapes` or `--max_shapes` says; None if it wasn't given.

    Raises:
        UsageError: If it can't be read.
    """
    return InputRequest.from_text(texts) if texts else None


def add_dim(group: argparse._ActionsContainer) -> None:
    """Add `--dim`."""
    group.add_argument(
        "--dim",
        action=InputItemsAction,
        item="dim",
        default=[],
        metavar="SYMBOL=SIZE",
        help="size of a symbolic dim, wherever it stands",
    )


def input_request(options: argparse.Namespace) -> InputRequest:
    """What the flags of `add_inputs` say.

    Raises:
        UsageError: If one of them can't be read.
    """
    return InputRequest.from_text(options.shapes, options.dim, options.input_range, options.seed)


def _key_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text} is not KEY=VALUE")
    return key, value


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
