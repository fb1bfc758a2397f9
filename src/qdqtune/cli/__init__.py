"""The command line: one file per subcommand, which parses and prints and decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdqtune._parser import Parser

    AddParser = Callable[..., Parser]

__all__: list[str] = []
