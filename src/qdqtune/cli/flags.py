"""Flags that several commands share, and how they may be spelled."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def common() -> argparse.ArgumentParser:
    """The flags of every command, as a parent parser."""
    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="say more on stderr; twice for everything",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="only errors on stderr")
    return parser


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format`."""
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="how results are printed"
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add `-o/--output` and `--force`."""
    parser.add_argument("-o", "--output", required=True, metavar="OUT", help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")


def comma_list(text: str) -> list[str]:
    """Parse `a,b,c`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def positive(text: str) -> int:
    """Parse a number from 1 up."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 up")
    return number


def natural(text: str) -> int:
    """Parse a number from 0 up."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number


def normalize(arguments: Sequence[str]) -> list[str]:
    """Let long flags be spelled with dashes: `--quant-type` is `--quant_type`."""
    normal: list[str] = []
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*normal, *arguments[position:]]
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            argument = "--" + name.replace("-", "_") + equals + value
        normal.append(argument)
    return normal
