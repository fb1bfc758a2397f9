"""Signals that end a command like Ctrl-C, with the best result so far, and their deferral."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""All signals that interrupt."""

_SAME_REQUEST_S = 1.0
_READER_ENDS_WITHIN_MS = 200

_hung_up_s = float("-inf")

_logger = logging.getLogger(__name__)


def interrupt_on_signals() -> None:
    """Make SIGTERM and SIGHUP interrupt the main thread, unless they are already handled.

    An ignored signal stays ignored: `nohup` starts commands that way.
    """
    global _hung_up_s
    _hung_up_s = float("-inf")
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


def is_repeated(number: int) -> bool:
    """Whether a signal only repeats the request of an earlier hang-up; records hang-ups."""
    global _hung_up_s
    since_s = time.monotonic() - _hung_up_s
    if number != signal.SIGHUP:
        return number == signal.SIGTERM and since_s < _SAME_REQUEST_S
    if since_s == float("inf"):
        _hung_up_s = time.monotonic()
        _let_go_of_readers()
    return since_s < float("inf")


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    if not is_repeated(number):
        raise KeyboardInterrupt


def _let_go_of_readers() -> None:
    """Redirect output that goes to a closed terminal, or to a program that ended with it."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None or stream.closed:
            continue
        poller = select.poll()
        poller.register(stream.fileno(), 0)  # such descriptors always report errors and hang-ups
        if poller.poll(_READER_ENDS_WITHIN_MS):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


@contextlib.contextmanager
def defer_interrupts(*, is_over: bool) -> Iterator[None]:
    """Only record the first interrupt; a second one ends the run.

    A hang-up never counts as the second: closing the terminal after Ctrl-C does not mean an abort.

    Args:
        is_over: Whether there already was a first interrupt.
    """
    interrupting = (signal.default_int_handler, _interrupt)
    deferred = [each for each in SIGNALS if signal.getsignal(each) in interrupting]
    if threading.current_thread() is not threading.main_thread():
        deferred = []
    elif is_over:
        deferred = [each for each in deferred if each == signal.SIGHUP]
    before = {each: signal.getsignal(each) for each in deferred}

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        nonlocal is_over
        if is_repeated(number) or is_over:
            return
        is_over = True
        for each in deferred:
            if each != signal.SIGHUP:
                signal.signal(each, before[each])
        _logger.warning("interrupted: the result is being finished; press Ctrl-C again to abort")

    for each in deferred:
        signal.signal(each, note)
    try:
        yield
    finally:
        for each in deferred:
            signal.signal(each, before[each])
