"""Progress bars, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _ignore(_done: int, _total: int | None) -> None:
    pass


@contextmanager
def progress_bar(title: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """Show a bar on stderr with the time left.

    Args:
        title: The current task.
        quiet: Whether to show nothing.

    Yields:
        A function that takes the amount done and the total, if the total is known.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield advance
