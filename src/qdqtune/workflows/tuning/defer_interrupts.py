"""Interrupts while the last steps are taken."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from qdqtune.workflows.interrupts import SIGNALS, interrupts, is_repeated

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def defer_interrupts(*, is_over: bool) -> Iterator[None]:
    """Let a first interrupt only be noted, and a second one end the run.

    A hang-up is never a second one: whoever closes a terminal after Ctrl-C wants no less.

    Args:
        is_over: Whether there was a first one already.
    """
    deferred = [each for each in SIGNALS if interrupts(each)]
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
        _logger.warning("interrupted: the result is being finished; once more to abort")

    for each in deferred:
        signal.signal(each, note)
    try:
        yield
    finally:
        for each in deferred:
            signal.signal(each, before[each])
