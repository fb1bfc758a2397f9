"""Plain tables for terminals and pipes alike."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

# Control and formatting characters (among them those that turn text around), halves of characters,
# and separators of lines and paragraphs.
_ACTED_UPON = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# A name in a model can be as long as its author likes.
_LONGEST_LINE = 2000


class Table(NamedTuple):
    """What a table consists of, however it is shown: `text_table(*table)`, or in a notebook.

    Attributes:
        header: Column titles.
        rows: Cells.
        right: Positions of the columns that are aligned to the right.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> str:
    """Line up cells in columns.

    Args:
        header: Column titles.
        rows: Cells; control characters in them are made visible, so that a file's name can't
            write to the terminal.
        right: Positions of the columns that are aligned to the right.
    """
    cells = [[printable(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def printable(text: str) -> str:
    """Replace what a terminal would act upon, or could not show."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in _ACTED_UPON else character
        for character in text
    )


def message(text: str) -> str:
    """Several lines for a terminal, printable, and none of them endless."""
    return "\n".join(_cut(printable(line)) for line in text.split("\n"))


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    kept = _LONGEST_LINE // 2
    return f"{line[:kept]} … {line[-kept:]}"
