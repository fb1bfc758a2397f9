"""Typed access to fields of untrusted JSON."""

from __future__ import annotations

import math
from typing import Any

_MOST_WHOLE = 1 << 63


def object_in(value: object, name: str) -> dict[str, Any]:
    """Return the object in a field.

    Raises:
        ValueError: If it holds anything else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return value


def list_in(value: object, name: str) -> list[Any]:
    """Return the list in a field; see `object_in`."""
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return value


def text_in(value: object, name: str) -> str:
    """Return the string in a field; see `object_in`."""
    if not isinstance(value, str):
        raise ValueError(f"{name} is no text")
    return value


def switch_in(value: object, name: str) -> bool:
    """Return the boolean in a field; see `object_in`."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false")
    return value


def whole_in(value: object, name: str, least: int = -_MOST_WHOLE) -> int:
    """Return the integer in a field; see `object_in`.

    Args:
        value: The field's value.
        name: The field's name.
        least: The smallest valid value.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST_WHOLE:
        raise ValueError(f"{name} is no whole number{'' if least < 0 else f' from {least} on'}")
    return value


def number_in(value: object, name: str, least: float = -math.inf, most: float = math.inf) -> float:
    """Return the finite number in a field; see `object_in`.

    Args:
        value: The field's value.
        name: The field's name.
        least: The smallest valid value.
        most: The largest valid value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is no finite number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} is no finite number")
    if not least <= number <= most:
        raise ValueError(f"{name} can't be {number:g}")
    return number
