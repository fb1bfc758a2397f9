"""Progress of a command: bars and a live line on a terminal, one line per step elsewhere."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qdqtune.records._printable import message, printable
from qdqtune.records._tuning import TuneEvent
from qdqtune.report._formatting import duration

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_SUBGRAPHS = "subgraphs"  # the stage whose steps are subgraphs instead of whole models
# Seldom, because redrawing the bar takes time on the machine that is measuring.
_REFRESHES_PER_S = 2
_WIDEST = 48

Watch = Callable[[TuneEvent], None]


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
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with _live(title, *columns) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def tune_progress(*, quiet: bool) -> Iterator[Watch]:
    """Show the progress of a run on stderr.

    Args:
        quiet: Whether to show nothing.

    Yields:
        A callback for the run.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore if quiet else _print_line
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    # Show only our own fields, and no markup: a message can contain names from the model.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("best {task.fields[best]:.3f}x", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with _live("starting", *columns, count="", best=1.0, left="") as update:

        def show(event: TuneEvent) -> None:
            # Only the search knows the quality of its best result; its columns show its state.
            is_search = event.planned is not None
            shown = event.stage if is_search else f"{event.stage}: {event.message}"
            counted = "subgraph " if event.stage == _SUBGRAPHS else ""
            update(
                description=printable(shown)[:_WIDEST],
                completed=_done(event),
                total=event.planned,
                count=f"{counted}{_done(event)}/{event.planned}" if event.planned else "",
                left="" if event.eta_s is None else _left(event.stage, event.eta_s),
                **({"best": event.speedup} if is_search else {}),
            )

        yield show


@contextmanager
def step_progress(*, quiet: bool) -> Iterator[Watch]:
    """Show the current step on stderr, for work that has no best result so far.

    Args:
        quiet: Whether to show nothing.

    Yields:
        A callback for the steps.
    """
    if quiet or not sys.stderr.isatty():
        yield _ignore if quiet else _print_line
        return
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    # No markup: a message can contain names from the model.
    step = TextColumn("{task.description}", markup=False)
    with _live("starting", SpinnerColumn(), step, TimeElapsedColumn()) as update:

        def show(event: TuneEvent) -> None:
            left = "" if event.eta_s is None else f", {_left(event.stage, event.eta_s)}"
            update(description=printable(f"{event.stage}: {event.message}{left}"))

        yield show


def event_line(event: TuneEvent) -> str:
    """Format one step as a log line."""
    facts = [_benchmarks(event)] if event.benchmarks or event.planned else []
    if event.known:
        facts.append(f"{event.known} known from before")
    if event.planned and event.stage != _SUBGRAPHS:
        facts.append(f"{event.speedup:.3f}x so far")
    if event.eta_s is not None:
        facts.append(_left(event.stage, event.eta_s))
    also = f" ({', '.join(facts)})" if facts else ""
    return message(f"[{duration(event.seconds)}] {event.stage}: {event.message}{also}")


def _ignore(*_: Any) -> None:
    pass


def _print_line(event: TuneEvent) -> None:
    sys.stderr.write(event_line(event) + "\n")
    sys.stderr.flush()


@contextmanager
def _live(title: str, *columns: ProgressColumn, **fields: Any) -> Iterator[Callable[..., None]]:
    """Show a bar, with log lines above it; yields a function that updates what it shows."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=_REFRESHES_PER_S,
    )
    with bar, _logs_above():
        yield functools.partial(bar.update, bar.add_task(title, total=None, **fields))


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


def _benchmarks(event: TuneEvent) -> str:
    if event.stage == _SUBGRAPHS:
        return f"subgraph {_done(event)} of {event.planned}"
    if event.planned is None:
        return f"{event.benchmarks} benchmarks"
    return f"{_done(event)} of {event.planned} benchmarks"


def _left(stage: str, eta_s: float) -> str:
    """Format the time left; while subgraphs are timed, the duration of whole models is unknown."""
    return f"{duration(eta_s)} left{' for subgraphs' if stage == _SUBGRAPHS else ''}"


def _done(event: TuneEvent) -> int:
    return event.benchmarks + event.known
