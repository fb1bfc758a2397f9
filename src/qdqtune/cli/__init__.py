"""The command line: one file per subcommand, which parses and prints and decides nothing.

A subcommand's module has `DESCRIPTION`, `EXAMPLES`, `add_flags(parser)` and `run(options)`, which
returns the exit code.
"""

from __future__ import annotations

__all__: list[str] = []
