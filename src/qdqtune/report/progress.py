"""Progress on a terminal, and nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def _ignore(_done: int, _total: int | None) -> None:
    pass


@contextmanager
def progress_bar(title: str, *, quiet: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr with the time left.

    Args:
        title: What is going on.
        quiet: Show nothing.

    Yields:
        A function that takes what is done and what there is to do, if that is known.
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
