"""The `qdqtune` command: logs on stderr, results on stdout.

Exit codes: 0 ok, 1 failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qdqtune._version import __version__
from qdqtune.cli import (
    bench,
    compare,
    convert,
    doctor,
    export,
    insert,
    inspect,
    optimize,
    quantize,
    shapes,
    strip,
    tune,
    verify,
)
from qdqtune.cli.flags import add_common
from qdqtune.cli.parser import Parser
from qdqtune.cli.running import USAGE, run_safely, set_up_logging

if TYPE_CHECKING:
    from qdqtune.cli import Commands

_COMMANDS = (
    tune,
    quantize,
    verify,
    export,
    bench,
    compare,
    inspect,
    insert,
    strip,
    optimize,
    convert,
    shapes,
    doctor,
)


def entry_point() -> None:
    """What the installed script calls."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The command line without the program's name.

    Returns:
        The exit code.
    """
    try:
        options = get_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    options.command_line = shlex.join(["qdqtune", *arguments])
    set_up_logging(options.verbose, options.quiet)
    return run_safely(lambda: int(options.run(options)), options)


def get_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = Parser(
        prog="qdqtune",
        description="Find where quantization pays in an ONNX model, by measuring.",
        epilog="`qdqtune COMMAND --help` shows the flags of a command.",
        examples=(
            "qdqtune tune model.onnx --calibration_data samples.npz -o run",
            "qdqtune bench run/baseline.onnx run/optimized_final.onnx",
        ),
    )
    parser.add_argument(
        "--version",
        action=_PrintVersions,
        nargs=0,
        help="print the versions of qdqtune and of the engines",
    )
    commands: Commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=Parser
    )
    for command in _COMMANDS:
        command.add_parser(commands)
    for each in commands.choices.values():
        add_common(each)
    return parser


class _PrintVersions(argparse.Action):
    """Prints our version and the engines'."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from qdqtune.engines import registry

        print(f"qdqtune {__version__}")
        for name, entry in registry.engines().items():
            version = registry.available(name).version
            if version and entry.measures:
                print(f"{name} {version}")
        parser.exit()
