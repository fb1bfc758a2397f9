"""Signals that end a command as Ctrl-C does: with the best so far.

Schedulers that take a machine back ask first (SIGTERM), and so does a terminal that is closed
(SIGHUP). Some send both at once, or a hang-up twice: that is one request, not a second one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""All that interrupt."""

_SAME_REQUEST_S = 1.0
_READER_ENDS_WITHIN_MS = 200

_hung_up_s = float("-inf")


def interrupt_on_signals() -> None:
    """Let SIGTERM and SIGHUP interrupt the main thread, unless somebody decided otherwise.

    A signal that is ignored stays so: `nohup` starts commands like that.
    """
    global _hung_up_s
    _hung_up_s = float("-inf")
    with contextlib.suppress(ValueError):  # only the main thread may say so
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)


def interrupts(number: int) -> bool:
    """Whether a signal would raise `KeyboardInterrupt`."""
    return signal.getsignal(number) in (signal.default_int_handler, _interrupt)


def is_repeated(number: int) -> bool:
    """Whether a signal only repeats a request that a hang-up has already made; notes hang-ups."""
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
    """Write nowhere instead of to a terminal that is gone or to a program that ended with it."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is None or stream.closed:
            continue
        poller = select.poll()
        poller.register(stream.fileno(), 0)  # errors and hang-ups are always reported
        if poller.poll(_READER_ENDS_WITHIN_MS):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
