"""`qdqtune doctor`: which engines are usable here, and why the others are not."""

from __future__ import annotations

import argparse

from qdqtune.cli._runner import FAILED, OK, show

DESCRIPTION = (
    "Show which engines can be used here, with version, device, instruction set "
    "and dialect, and why the others can't."
)
EXAMPLES = ("qdqtune doctor", "qdqtune doctor --format json")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags: it has none of its own."""


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    from qdqtune.report._health import health_text
    from qdqtune.report._progress import show_progress

    with show_progress(quiet=options.quiet, first="starting every engine"):
        from qdqtune.workflows._doctor import examine

        health = examine()
    show(options, health, lambda: health_text(health))
    return OK if any(engine.usable and engine.measures for engine in health.engines) else FAILED
