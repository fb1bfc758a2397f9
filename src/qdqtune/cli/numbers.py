"""Numbers on the command line that are more than numbers."""

from __future__ import annotations

import argparse
import math


def decibels(text: str) -> float | None:
    """Parse a number of dB; `none` is None."""
    if text.lower() == "none":
        return None
    return _number(text, "none or a number of dB")


def ratio(text: str) -> float:
    """Parse a number from 1 up."""
    number = _number(text, "a ratio such as 1.02")
    if number < 1.0:
        raise argparse.ArgumentTypeError(f"{text} would allow a slower model; write 1 or more")
    return number


def not_negative(text: str) -> float:
    """Parse a number from 0 up."""
    number = _number(text, "a number such as 0.01")
    if number < 0.0:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return number


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text} is not {what}")
    return number
