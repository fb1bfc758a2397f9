"""Text for terminals and pipes: pages of lines and tables, lists of names, counts, durations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from qdqtune.records._printable import printable


class Table(NamedTuple):
    """The content of a table, for any output: a line of `page`, or a notebook.

    Attributes:
        header: Column titles.
        rows: Cells.
        right: Indices of the right-aligned columns.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()

    def only(self, columns: Sequence[int]) -> Table:
        """Return the table with only some of its columns."""
        return Table(
            [self.header[column] for column in columns],
            [[row[column] for column in columns] for row in self.rows],
            [place for place, column in enumerate(columns) if column in self.right],
        )


Line = str | Table


def page(lines: Iterable[Line], warning: str = "") -> str:
    """Join lines and tables; control characters are replaced, so that no name can add a line.

    Args:
        lines: The lines; each stays one line, whatever it contains.
        warning: The last line; empty for none.
    """
    shown = [*lines, warning] if warning else lines
    return "\n".join(
        text_table(*line) if isinstance(line, Table) else printable(line) for line in shown
    )


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
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


def cell(value: float | None, form: str, unit: str = "") -> str:
    """Format a number for a table; empty if it is unknown."""
    return "" if value is None else f"{value:{form}}{unit}"


def shortened(name: str, longest: int) -> str:
    """Cut a name that is too long for a table."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def some(names: Sequence[str], most: int, longest: int = 1 << 30) -> str:
    """List the first names, and the number of the others."""
    shown = ", ".join(shortened(name, longest) for name in names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown


def counted(number: int, what: str) -> str:
    """Format a number and its noun."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


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
