"""Run a command: results on stdout, logs on stderr, limits, and errors without a traceback."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qdqtune.records._errors import OutputError, QdqtuneError, UsageError
from qdqtune.records._printable import message
from qdqtune.resources import resource_limits, this_process_limited
from qdqtune.workflows._interrupts import interrupt_on_signals

if TYPE_CHECKING:
    from qdqtune.records._json_form import Record

_ELSEWHERE = "Write it to a file on another disk."
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
# A model of 100,000 nodes is millions of objects that stay. With Python's default of 700, looking
# for garbage among them takes a third of the time.
_OBJECTS_PER_COLLECTION = 10_000


def run_safely(
    command: Callable[[], int], options: argparse.Namespace, *, usage: int = USAGE
) -> int:
    """Run a command within its limits; errors that a user can act on are printed in a line or two.

    Args:
        command: Runs the command and returns the exit code.
        options: The parsed arguments, including those of `add_limits`.
        usage: The exit code for a usage error.

    Returns:
        The exit code.
    """
    interrupt_on_signals()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    try:
        with resource_limits(options.max_memory, options.timeout), this_process_limited():
            code = command()
        sys.stdout.flush()
        return code
    except QdqtuneError as error:
        _complain(error)
        return usage if isinstance(error, UsageError) else FAILED
    except BrokenPipeError:
        # The reader of our output closed the pipe; keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        # A full disk or a missing file: a traceback would not explain it better.
        return _failed(error)
    except MemoryError:
        print("error: There is not enough memory.", file=sys.stderr)
        print(
            "       Try a smaller batch, a higher --max_memory, or a machine with more memory.",
            file=sys.stderr,
        )
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _failed(error: OSError) -> int:
    """Report a failed system call; an error without a file name is about our output."""
    from qdqtune.graph._atomic_files import full_disk  # help and usage errors don't need it

    full = full_disk(error, Path(error.filename or os.curdir))
    if full is not None and error.filename:
        _complain(full)
        return FAILED
    if full is not None:
        _complain(OutputError(f"The output could not be written: {error.strerror}.", _ELSEWHERE))
        with contextlib.suppress(OSError):  # stdout may not be a file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no retry at exit
        return FAILED
    where = f": {error.filename}" if error.filename else ""
    print(message(f"error: {error.strerror or error}{where}"), file=sys.stderr)
    return FAILED


def show(
    options: argparse.Namespace, result: Record | Mapping[str, Any], text: Callable[[], str]
) -> None:
    """Print a result as `--format` says; with JSON, its warning is logged.

    Args:
        options: The parsed arguments.
        result: The result, or its JSON form.
        text: Formats it as text, which ends with the warning.
    """
    if options.format == "text":
        print(text())
        return
    print(json.dumps(result if isinstance(result, Mapping) else result.to_dict(), indent=1))
    if warning := getattr(result, "warning", ""):
        logging.getLogger("qdqtune").warning("%s", warning)


def set_up_logging(verbose: int, quiet: bool) -> None:
    """Send logs to stderr at the requested level.

    Args:
        verbose: How often `-v` was given.
        quiet: Errors only.
    """
    ours = (
        logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter("%(levelname)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.ERROR, force=True)
    logging.getLogger("qdqtune").setLevel(ours)
    if verbose >= 2:
        logging.getLogger().setLevel(logging.DEBUG)


_INDENT = " " * 7


class _PrintableFormatter(logging.Formatter):
    """Escapes log lines, because they can contain names from an untrusted model."""

    def format(self, record: logging.LogRecord) -> str:
        return _indented(super().format(record))


def _complain(error: QdqtuneError) -> None:
    print(_indented(f"error: {error.what}"), file=sys.stderr)
    if error.hint:
        print(_indented(f"       {error.hint}"), file=sys.stderr)


def _indented(text: str) -> str:
    """Indent continuation lines, so that a name with a newline in it can't start a line."""
    first, *later = message(text).split("\n")
    return "\n".join([first, *(f"{_INDENT}{line.removeprefix(_INDENT)}" for line in later)])
