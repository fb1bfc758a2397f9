"""Text for terminals and pipes: tables, printable names, messages and durations."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

# Control and formatting characters (including bidirectional overrides), surrogates, and line and
# paragraph separators.
_ACTED_UPON = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Names in a model can be arbitrarily long.
_LONGEST_LINE = 2000


class Table(NamedTuple):
    """The content of a table, for any output: `text_table(*table)`, or a notebook.

    Attributes:
        header: Column titles.
        rows: Cells.
        right: Indices of the right-aligned columns.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> str:
    """Align cells in columns.

    Args:
        header: Column titles.
        rows: Cells; control characters in them are escaped, so that a name can't control the
            terminal.
        right: Indices of the right-aligned columns.
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
    """Replace characters that a terminal would act on or can't show."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in _ACTED_UPON else character
        for character in text
    )


def message(text: str) -> str:
    """Make a multi-line message printable, and truncate long lines."""
    return "\n".join(_cut(printable(line)) for line in text.split("\n"))


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    kept = _LONGEST_LINE // 2
    return f"{line[:kept]} … {line[-kept:]}"


_TENTHS, _MINUTE, _HOUR = 9.95, 60, 3600


def duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if seconds < _TENTHS:
        return f"{seconds:.1f} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // _MINUTE} h {minutes % _MINUTE:02d} min"
