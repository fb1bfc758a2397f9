"""Interrupts while the last steps are taken."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def patient(*, is_over: bool) -> Iterator[None]:
    """Let a first interrupt only be noted, and a second one end the run.

    Args:
        is_over: Whether there was a first one already.
    """
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    interrupting = [each for each in _SIGNALS if before[each] is signal.default_int_handler]
    if is_over or threading.current_thread() is not threading.main_thread():
        interrupting = []

    def note(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each in interrupting:
            signal.signal(each, before[each])
        _logger.warning("interrupted: the result is being finished; once more to abort")

    for each in interrupting:
        signal.signal(each, note)
    try:
        yield
    finally:
        for each in interrupting:
            signal.signal(each, before[each])
