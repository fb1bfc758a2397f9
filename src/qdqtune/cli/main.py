"""The `qdqtune` command: logs on stderr, results on stdout.

Exit codes: 0 ok, 1 failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import functools
import gc
import importlib
import shlex
import sys
from collections.abc import Sequence

from qdqtune._parser import Parser
from qdqtune._version import __version__
from qdqtune.cli._runner import USAGE, run_safely, set_up_logging

_COMMANDS = {
    "tune": "find where quantization pays in a model, by measuring",
    "quantize": "quantize a model in one go, by rules",
    "verify": "check a tuned model against what its run claims",
    "report": "write a page that shows a tuning run, or several side by side",
    "export": "write a candidate of a tuning run, or what stays float for another tool",
    "cache": "show, merge or prune what tuning runs found out for others",
    "bench": "time models against each other",
    "compare": "show how far a quantized model is from float, and where",
    "inspect": "show a model's regions, what can be quantized in it, or how an engine runs it",
    "insert": "write a model with Q/DQ on chosen ops",
    "strip": "remove Q/DQ from a model",
    "optimize": "fold and clean up a model; Q/DQ nodes stay as they are",
    "convert": "write a model in float16, bfloat16 or float32",
    "shapes": "show a model's shapes, or write it with fixed ones",
    "doctor": "show which engines can be used here",
    "completion": "print a script that completes commands and flags in a shell",
}


def entry_point() -> None:
    """Entry point of the installed script."""
    code = main(sys.argv[1:])
    # Collecting the objects of a large model once more at exit would keep the user waiting.
    gc.freeze()
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command.

    Args:
        arguments: The command line without the program name.

    Returns:
        The exit code.
    """
    try:
        options = get_parser(*arguments[:1]).parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    options.command_line = shlex.join(["qdqtune", *arguments])
    set_up_logging(options.verbose, options.quiet)
    return run_safely(lambda: int(options.run(options)), options)


def get_parser(first: str | None = None) -> argparse.ArgumentParser:
    """Build the parser.

    Args:
        first: The first argument. Commands that it does not name are declared by name only, which
            saves their imports. None declares all commands in full.
    """
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
    commands = parser.add_subparsers(
        title="commands", required=True, metavar="COMMAND", parser_class=Parser
    )
    for name, summary in _COMMANDS.items():
        add = functools.partial(commands.add_parser, name, help=summary)
        if first in (None, name):
            from qdqtune.cli._flags import NAMES, add_common

            command = importlib.import_module(f"qdqtune.cli._{name}")
            its_own = add(description=command.DESCRIPTION, examples=command.EXAMPLES, names=NAMES)
            command.add_flags(its_own)
            add_common(its_own)
            its_own.set_defaults(run=command.run)
        else:
            add()
    return parser


class _PrintVersions(argparse.Action):
    """Prints the versions of qdqtune and of the engines."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from qdqtune.engines import _registry as registry

        print(f"qdqtune {__version__}")
        for name, entry in registry.engines().items():
            version = registry.available(name).version
            if version and entry.measures:
                print(f"{name} {version}")
        parser.exit()
