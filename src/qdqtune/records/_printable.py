"""Text that is safe to print: names in a model come from an untrusted author."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

# Control and formatting characters (including bidirectional overrides), surrogates, and line and
# paragraph separators.
_ACTED_UPON = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Names in a model can be arbitrarily long.
_LONGEST_LINE = 2000


def printable(text: str) -> str:
    """Replace characters that a terminal would act on or can't show."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(character) in _ACTED_UPON else character
        for character in text
    )


def message(text: str) -> str:
    """Make a multi-line message printable, and truncate long lines."""
    return "\n".join(_cut(printable(line)) for line in text.split("\n"))


def listed(names: Sequence[str], most: int = 3) -> str:
    """List names; beyond this many, only their number."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    kept = _LONGEST_LINE // 2
    return f"{line[:kept]} … {line[-kept:]}"
