"""Base class of the results of public functions: a headline, plain values and a notebook table."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

# Loaded by name when a notebook needs it: reports depend on records, never the reverse.
_NOTEBOOK = "qdqtune.report.notebook"
_LONGEST_LINE = 240


class Result(ABC):
    """Base class of public results; a dataclass that inherits it is declared ``repr=False``."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The essentials, in one line."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The JSON form: what the command prints with ``--format json``."""

    def __repr__(self) -> str:
        line = " ".join(self.headline.split())
        shown = "".join(
            each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line
        )
        cut = shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}…"
        return f"{type(self).__name__}({cut})"

    def _repr_html_(self) -> str:
        """The table that notebooks show."""
        html: str = importlib.import_module(_NOTEBOOK).html_of(self)
        return html
