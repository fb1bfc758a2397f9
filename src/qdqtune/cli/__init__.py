"""The command line: one file per subcommand; it prints, it never decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdqtune.cli.parser import Parser

    AddParser = Callable[..., Parser]

__all__: list[str] = []
