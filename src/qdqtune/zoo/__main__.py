"""`python -m qdqtune.zoo resnet18 -o resnet18.onnx`: write a zoo model to a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtune._parser import AssignmentsAction, Parser
from qdqtune.graph._files import check_writable, write_bytes
from qdqtune.records._errors import QdqtuneError, UsageError
from qdqtune.records._printable import message
from qdqtune.zoo import ARCHITECTURES, Setting, build, default_settings, describe

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


_OK, _FAILED, _USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The command line without the program name; None uses `sys.argv`.

    Returns:
        0 on success, 1 if the file can't be written, 2 if the command line is invalid.
    """
    try:
        arguments = get_parser().parse_args(argv)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else _USAGE
    try:
        if arguments.list:
            sys.stdout.write(_listing())
        else:
            _write(arguments)
    except QdqtuneError as error:
        sys.stderr.write(message(f"error: {error}") + "\n")
        return _USAGE if isinstance(error, UsageError) else _FAILED
    return _OK


def get_parser() -> argparse.ArgumentParser:
    """Build the parser."""
    parser = Parser(
        prog="python -m qdqtune.zoo",
        description="Write an ONNX model with seeded weights.",
        examples=(
            "python -m qdqtune.zoo --list",
            "python -m qdqtune.zoo mobilenet_v2 --set image=96,batch=2 -o model.onnx",
        ),
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the architecture; see --list")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="the file to write (default: NAME.onnx)"
    )
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights (default: 0)")
    parser.add_argument(
        "--set",
        action=AssignmentsAction,
        default=[],
        metavar="KEY=VALUE",
        help="settings of the architecture, such as layers=2, blocks=1,1,1,1 or folded=true",
    )
    parser.add_argument("--list", action="store_true", help="list architectures and settings")
    return parser


def _listing() -> str:
    return "".join(f"{name:15}{describe(name)}\n" for name in ARCHITECTURES)


def _write(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        raise UsageError("no architecture is named", f"Models: {', '.join(ARCHITECTURES)}.")
    path = arguments.output or Path(f"{arguments.name}.onnx")
    check_writable(path, force=arguments.force)
    settings = read_settings(arguments.name, arguments.set)
    content = build(arguments.name, seed=arguments.seed, **settings).SerializeToString()
    write_bytes(path, content, force=arguments.force)
    sys.stdout.write(f"{path}: {len(content) / 1e6:.1f} MB\n")


def read_settings(name: str, assignments: Sequence[str]) -> dict[str, object]:
    """Read the settings of an architecture as a user types them, such as `width=64`.

    Raises:
        UsageError: If one has no value.
    """
    defaults = default_settings(name)
    settings: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment} has no value", "Write --set key=value.")
        settings[key] = _parsed(defaults[key], text) if key in defaults else text
    return settings


def _parsed(default: Setting, text: str) -> Setting | str:
    """Parses a setting as a user types it (`64`, `0.5`, `true`, `2,2,4,2`).

    A text that can't be parsed is returned unchanged; `build` reports the error.
    """
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split(","))
        return type(default)(text)
    except (KeyError, ValueError):
        return text


if __name__ == "__main__":
    sys.exit(main())
