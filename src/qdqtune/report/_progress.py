"""Progress of a command: bars and a live line on a terminal, one line per step elsewhere."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from qdqtune.records._printable import message, printable
from qdqtune.records._tuning import TuneEvent
from qdqtune.report._formatting import duration
from qdqtune.report._subgraphs import STAGE as SUBGRAPHS

if TYPE_CHECKING:
    from rich.progress import Progress


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


# Seldom, because redrawing the bar takes time on the machine that is measuring.
_REFRESHES_PER_S = 2
_WIDEST = 48

Watch = Callable[[TuneEvent], None]


@contextmanager
def tune_progress(*, quiet: bool) -> Iterator[Watch]:
    """Show the progress of a run on stderr.

    Args:
        quiet: Whether to show nothing.

    Yields:
        A callback for the run.
    """
    if quiet:
        yield lambda _event: None
    elif sys.stderr.isatty():
        with _bar() as bar, _logs_above():
            yield _Live(bar).show
    else:
        yield _print_line


@contextmanager
def step_progress(*, quiet: bool) -> Iterator[Watch]:
    """Show the current step on stderr, for work that has no best result so far.

    Args:
        quiet: Whether to show nothing.

    Yields:
        A callback for the steps.
    """
    if quiet or not sys.stderr.isatty():
        yield (lambda _event: None) if quiet else _print_line
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # No markup: a message can contain names from the model.
    columns = (
        SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True) as bar, _logs_above():
        task = bar.add_task("starting", total=None)

        def show(event: TuneEvent) -> None:
            left = "" if event.eta_s is None else f", {_left(event.stage, event.eta_s)}"
            bar.update(task, description=printable(f"{event.stage}: {event.message}{left}"))

        yield show


def event_line(event: TuneEvent) -> str:
    """Format one step as a log line."""
    facts = [_benchmarks(event)] if event.benchmarks or event.planned else []
    if event.known:
        facts.append(f"{event.known} known from before")
    if event.planned and event.stage != SUBGRAPHS:
        facts.append(f"{event.speedup:.3f}x so far")
    if event.eta_s is not None:
        facts.append(_left(event.stage, event.eta_s))
    also = f" ({', '.join(facts)})" if facts else ""
    return message(f"[{duration(event.seconds)}] {event.stage}: {event.message}{also}")


@contextmanager
def _logs_above() -> Iterator[None]:
    """Send log lines through the current `sys.stderr`, which prints them above the bar."""
    handlers = [one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


def _print_line(event: TuneEvent) -> None:
    sys.stderr.write(event_line(event) + "\n")
    sys.stderr.flush()


def _benchmarks(event: TuneEvent) -> str:
    if event.stage == SUBGRAPHS:
        return f"subgraph {_done(event)} of {event.planned}"
    if event.planned is None:
        return f"{event.benchmarks} benchmarks"
    return f"{_done(event)} of {event.planned} benchmarks"


def _left(stage: str, eta_s: float) -> str:
    """Format the time left; while subgraphs are timed, the duration of whole models is unknown."""
    return f"{duration(eta_s)} left{' for subgraphs' if stage == SUBGRAPHS else ''}"


def _count(event: TuneEvent) -> str:
    if not event.planned:
        return ""
    return f"{'subgraph ' if event.stage == SUBGRAPHS else ''}{_done(event)}/{event.planned}"


def _done(event: TuneEvent) -> int:
    return event.benchmarks + event.known


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    # Show only our own fields, and no markup: a message can contain names from the model.
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("best {task.fields[best]:.3f}x", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=_REFRESHES_PER_S,
    )


class _Live:
    """The bar, updated on each event."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._best = 1.0
        self._task = bar.add_task("starting", total=None, count="", best=self._best, left="")

    def show(self, event: TuneEvent) -> None:
        if event.planned is not None:  # only the search knows the quality of its best result
            self._best = event.speedup
        # The other columns show the search's state.
        is_search = event.planned is not None
        shown = event.stage if is_search else f"{event.stage}: {event.message}"
        self._bar.update(
            self._task,
            description=printable(shown)[:_WIDEST],
            completed=_done(event),
            total=event.planned,
            count=_count(event),
            best=self._best,
            left="" if event.eta_s is None else _left(event.stage, event.eta_s),
        )
