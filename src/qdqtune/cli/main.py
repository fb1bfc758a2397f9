"""The `qdqtune` command: logs on stderr, results on stdout.

Exit codes: 0 ok, 1 failed, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from qdqtune._version import __version__
from qdqtune.cli import bench, convert, doctor, export, insert, shapes, strip, tune, verify
from qdqtune.cli.flags import normalize
from qdqtune.records.errors import QdqtuneError, UsageError
from qdqtune.report.tables import message

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

_COMMANDS = (tune, verify, export, bench, insert, strip, convert, shapes, doctor)


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
        options = get_parser().parse_args(normalize(arguments))
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else USAGE
    _set_up_logging(options.verbose, options.quiet)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except QdqtuneError as error:
        _complain(error)
        return USAGE if isinstance(error, UsageError) else FAILED
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from complaining on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        # A full disk, a file that vanished: nothing that a traceback would explain better.
        where = f": {error.filename}" if error.filename else ""
        print(message(f"error: {error.strerror or error}{where}"), file=sys.stderr)
        return FAILED
    except MemoryError:
        print("error: There is not enough memory for this.", file=sys.stderr)
        print("       Try a smaller batch, or a machine with more of it.", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def get_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="qdqtune",
        description="Find where quantization pays in an ONNX model, by measuring.",
        epilog="Each command has its own --help.",
    )
    parser.add_argument("--version", action=_PrintVersions, nargs=0, help="print all versions")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


class _PrintVersions(argparse.Action):
    """Prints our version and the engines'."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        from qdqtune.engines import registry

        print(f"qdqtune {__version__}")
        for name in registry.ENGINES:
            version = registry.available(name).version
            if version and name != "simulated":
                print(f"{name} {version}")
        parser.exit()


class _PrintableFormatter(logging.Formatter):
    """Names of a stranger's model end up in log lines, too."""

    def format(self, record: logging.LogRecord) -> str:
        return message(super().format(record))


def _set_up_logging(verbose: int, quiet: bool) -> None:
    ours = (
        logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
    logging.getLogger("qdqtune").setLevel(ours)
    if verbose >= 2:
        logging.getLogger().setLevel(logging.DEBUG)


def _complain(error: QdqtuneError) -> None:
    print(message(f"error: {error.what}"), file=sys.stderr)
    if error.hint:
        print(message(f"       {error.hint}"), file=sys.stderr)
