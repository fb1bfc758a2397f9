"""Progress of a command: every step once, as a line, and how far the current one is.

On a terminal, the current step has a live line below the steps before it. In a pipe, how far it is
becomes a line whenever nothing was written for a while. A notebook has one output, which is
updated.
"""

from __future__ import annotations

import contextlib
import html
import importlib
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from qdqtune.records._printable import message, printable
from qdqtune.records._tuning import TuneEvent
from qdqtune.report._formatting import duration, shortened

_SUBGRAPHS = "subgraphs"  # the stage whose steps are subgraphs instead of whole models
# Nobody should wait for more than two seconds without a sign of life.
_LONGEST_SILENCE_S = 1.5
_FIRST_AFTER_S = 0.8  # Python takes some time to start
# Seldom, because redrawing takes time on the machine that is measuring.
_REDRAW_S = 0.5
_LINES_IN_NOTEBOOK = 12
_WIDE = 100  # columns of a terminal that has room for a bar
_BAR, _SPACES, _LEAST_ROOM = 16, 5, 24
_OLD_S = 1.0  # an amount that has not changed for this long
_ROUNDED_S = 1.0  # a difference that durations don't show

Watch = Callable[[TuneEvent], None]


@contextmanager
def show_progress(
    *, quiet: bool = False, eager: bool = False, first: str = "starting"
) -> Iterator[Watch]:
    """Show the progress of a command: on stderr, or in the output of a notebook's cell.

    Args:
        quiet: Whether to show nothing.
        eager: Whether to show the first steps at once; otherwise nothing is shown of a command
            that ends within two seconds.
        first: What the command does until its first event.

    Yields:
        A callback for the command: ``callbacks=[watch]``.
    """
    if quiet:
        yield lambda _event: None
        return
    watcher = _Watcher(_choose_screen(), TuneEvent("model", first))
    with contextlib.closing(watcher):
        if eager:
            watcher.open()
        yield watcher


def event_line(event: TuneEvent) -> str:
    """Format an event as a log line."""
    facts = _facts(event)
    also = f" ({', '.join(facts)})" if facts else ""
    text = f"[{duration(event.seconds)}] {event.stage}: {event.message}{also}"
    return message(printable(text))  # a name with a line break in it begins no line


def _facts(event: TuneEvent) -> list[str]:
    """List the figures of an event: benchmarks, the best so far, the time left."""
    facts = []
    if event.benchmarks or event.planned:
        facts.append(_benchmarks(event))
    if event.known:
        facts.append(f"{event.known} known from before")
    if event.speedup != 1.0 or (event.planned and event.stage != _SUBGRAPHS):
        facts.append(f"{event.speedup:.3f}x so far")
    if event.eta_s is not None:
        of = " for subgraphs" if event.stage == _SUBGRAPHS else ""
        facts.append(f"{duration(event.eta_s)} left{of}")
    budget_s = event.budget_left_s
    if budget_s is not None and (event.eta_s is None or budget_s - event.eta_s > _ROUNDED_S):
        facts.append(f"budget: {duration(budget_s)} left")
    return facts


def _benchmarks(event: TuneEvent) -> str:
    done = event.benchmarks + event.known
    if event.stage == _SUBGRAPHS:
        return f"subgraph {done} of {event.planned}"
    if event.planned is None:
        return f"{event.benchmarks} benchmarks"
    return f"{done} of {event.planned} benchmarks"


class _Screen(Protocol):
    """Where progress is shown.

    Attributes:
        interval_s: The longest time until the current step is shown again.
    """

    interval_s: float

    def open(self) -> None:
        """Begin to show something."""

    def add(self, line: str, event: TuneEvent) -> None:
        """Show a line for good: that of a step, which becomes the current one."""

    def update(self, event: TuneEvent) -> None:
        """Show how far the current step is, as the message of the event says."""

    def close(self) -> None:
        """Show nothing more."""


class _Watcher:
    """Takes events, and shows the last one again while none comes.

    Args:
        screen: Where they are shown.
        first: The step that the command begins with.
    """

    def __init__(self, screen: _Screen, first: TuneEvent) -> None:
        self._screen = screen
        self._event = first
        self._began = self._came = self._shown = time.monotonic()
        self._is_open = self._has_lines = False
        self._lock = threading.RLock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep_showing, daemon=True)
        self._thread.start()

    def __call__(self, event: TuneEvent) -> None:
        """Take an event."""
        with self._lock:
            now, is_step = time.monotonic(), event.done is None
            self._event, self._came = event, now
            if self._is_open and is_step:
                self._add(now)
            elif self._is_open and now - self._shown >= self._screen.interval_s:
                self._show_again(now)

    def open(self) -> None:
        """Show the next step at once."""
        with self._lock:
            self._is_open = True
            self._screen.open()

    def close(self) -> None:
        """Show nothing more."""
        self._end.set()
        self._thread.join()
        if self._is_open:
            self._screen.close()

    def _keep_showing(self) -> None:
        wait_s = _FIRST_AFTER_S
        with contextlib.suppress(OSError, ValueError):  # stderr was closed
            while not self._end.wait(max(0.01, wait_s)):
                with self._lock:
                    now = time.monotonic()
                    interval_s = self._screen.interval_s if self._has_lines else _FIRST_AFTER_S
                    if now - self._shown >= interval_s:
                        if not self._is_open:
                            self.open()
                        show = self._show_again if self._has_lines else self._add
                        show(now)
                    wait_s = self._shown + interval_s - now

    def _add(self, now: float) -> None:
        self._screen.add(event_line(self._aged(now)), self._so_far(now))
        self._shown, self._has_lines = now, True

    def _show_again(self, now: float) -> None:
        self._screen.update(self._so_far(now))
        self._shown = now

    def _so_far(self, now: float) -> TuneEvent:
        """Return the event with what is known of it by now as its message."""
        event, age_s = self._aged(now), now - self._came
        if event.done is None:
            return replace(event, message=f"{duration(age_s)} so far")
        if age_s < _OLD_S:
            return event
        return replace(event, message=f"{event.message}; {duration(age_s)} since then")

    def _aged(self, now: float) -> TuneEvent:
        """Return the event as if it came now; an estimate that was too short is dropped."""
        event, age_s = self._event, now - self._came
        eta_s, budget_left_s = event.eta_s, event.budget_left_s
        return replace(
            event,
            seconds=now - self._began,  # steps of several functions may come here
            eta_s=None if eta_s is None or 0.0 < eta_s < age_s else max(0.0, eta_s - age_s),
            budget_left_s=None if budget_left_s is None else max(0.0, budget_left_s - age_s),
        )


def _choose_screen() -> _Screen:
    if _in_notebook():
        return _Notebook()
    return _Terminal() if sys.stderr.isatty() else _Lines()


class _Lines:
    """A pipe or a file: lines only."""

    interval_s = _LONGEST_SILENCE_S

    def open(self) -> None:
        """See `_Screen`."""

    def add(self, line: str, event: TuneEvent) -> None:  # noqa: ARG002 - the line says it
        """See `_Screen`."""
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def update(self, event: TuneEvent) -> None:
        """See `_Screen`."""
        self.add(event_line(event), event)

    def close(self) -> None:
        """See `_Screen`."""


class _Terminal:
    """A terminal: lines, and below them a live line."""

    interval_s = _REDRAW_S

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def open(self) -> None:
        """See `_Screen`."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
        from rich.table import Column

        # No markup: a message can contain names from the model.
        whole_line = Column(no_wrap=True, overflow="ellipsis")
        console = Console(stderr=True)
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False, table_column=whole_line),
            *([BarColumn(bar_width=_BAR)] if console.width >= _WIDE else []),
            TextColumn("{task.fields[facts]}", markup=False, table_column=whole_line),
            console=console,
            transient=True,
            auto_refresh=False,
            redirect_stdout=sys.stdout.isatty(),  # a pipe gets the results, as always
        )
        self._stack.enter_context(self._bar)
        self._stack.enter_context(_logs_above())
        self._task = self._bar.add_task("starting", total=None, facts="")

    def add(self, line: str, event: TuneEvent) -> None:
        """See `_Screen`."""
        self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
        self.update(event)

    def update(self, event: TuneEvent) -> None:
        """See `_Screen`."""
        is_counted, what = event.done is not None, printable(f"{event.stage}: {event.message}")
        facts = printable(", ".join([f"{duration(event.seconds)} in all", *_facts(event)]))
        width = self._bar.console.width
        room = width - len(facts) - (_BAR if width >= _WIDE else 0) - _SPACES
        self._bar.update(
            self._task,
            description=shortened(what, max(_LEAST_ROOM, room)),
            completed=event.done if is_counted else event.benchmarks + event.known,
            total=event.total if is_counted else event.planned,
            facts=facts,
        )
        self._bar.refresh()

    def close(self) -> None:
        """See `_Screen`."""
        self._stack.close()


class _Notebook:
    """A cell of a notebook: its last lines in one output, which is updated."""

    interval_s = 1.0

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES_IN_NOTEBOOK)
        self._output: Any = None

    def open(self) -> None:
        """See `_Screen`."""
        display: Any = importlib.import_module("IPython.display").display
        self._output = display(self._shown(""), raw=True, display_id=True)

    def add(self, line: str, event: TuneEvent) -> None:
        """See `_Screen`."""
        self._lines.append(line)
        self.update(event)

    def update(self, event: TuneEvent) -> None:
        """See `_Screen`."""
        self._output.update(self._shown(event_line(event)), raw=True)

    def close(self) -> None:
        """See `_Screen`."""
        self._output.update(self._shown(""), raw=True)

    def _shown(self, now: str) -> dict[str, str]:
        text = "\n".join(filter(None, (*self._lines, now)))
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}


def _in_notebook() -> bool:
    """Whether IPython runs us in a kernel, which shows outputs in cells."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


@contextmanager
def _logs_above() -> Iterator[None]:
    """Send log lines through the current `sys.stderr`, which prints them above the live line."""
    handlers = [one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)
