"""`python -m qdqtune.zoo resnet18 -o resnet18.onnx`: writes a model to a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtune.graph.files import check_writable, write_bytes
from qdqtune.records.errors import QdqtuneError, UsageError
from qdqtune.zoo import ARCHITECTURES, build, default_settings, describe
from qdqtune.zoo.settings import parse_setting

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.list:
            sys.stdout.write(_listing())
        else:
            _write(arguments)
    except QdqtuneError as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, UsageError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m qdqtune.zoo", description="Writes an ONNX model with seeded weights."
    )
    parser.add_argument("name", nargs="?", help="the architecture, see --list")
    parser.add_argument("-o", "--output", type=Path, help="the file (default: <name>.onnx)")
    parser.add_argument("--seed", type=int, default=0, help="the weights' seed (default: 0)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a size, for example layers=2, blocks=1,1,1,1 or folded=true",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument("--list", action="store_true", help="list architectures and settings")
    return parser


def _listing() -> str:
    return "".join(f"{name:15}{describe(name)}\n" for name in ARCHITECTURES)


def _write(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        raise UsageError("no architecture is named", f"Models: {', '.join(ARCHITECTURES)}.")
    path = arguments.output or Path(f"{arguments.name}.onnx")
    check_writable(path, force=arguments.force)
    settings = _read_settings(arguments.name, arguments.set)
    content = build(arguments.name, seed=arguments.seed, **settings).SerializeToString()
    write_bytes(path, content, force=arguments.force)
    sys.stdout.write(f"{path}: {len(content) / 1e6:.1f} MB\n")


def _read_settings(name: str, assignments: Sequence[str]) -> dict[str, object]:
    defaults = default_settings(name)
    settings: dict[str, object] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set {assignment} has no value", "Write --set key=value.")
        settings[key] = parse_setting(defaults[key], text) if key in defaults else text
    return settings


if __name__ == "__main__":
    sys.exit(main())
