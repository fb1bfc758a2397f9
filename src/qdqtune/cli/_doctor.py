"""`qdqtune doctor`: which engines are usable here, and why the others are not."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qdqtune.cli._flags import add_format

if TYPE_CHECKING:
    from qdqtune.cli import AddParser


def add_parser(add: AddParser) -> None:
    """Declare the command."""
    parser = add(
        description="Show which engines can be used here, with version, device, instruction set "
        "and dialect, and why the others can't.",
        examples=("qdqtune doctor", "qdqtune doctor --format json"),
    )
    add_format(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from qdqtune.report._health import health_record, health_text
    from qdqtune.workflows._doctor import examine

    health = examine()
    if options.format == "json":
        print(json.dumps(health_record(health), indent=1))
    else:
        print(health_text(health))
    return 0 if any(engine.usable and engine.measures for engine in health.engines) else 1
