"""Settings of an architecture: the keyword parameters of its function, checked against defaults."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from qdqtune.records._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Setting = bool | int | float | tuple[int, ...]


def settings_of(architecture: Callable[..., Any]) -> dict[str, Setting]:
    """The settings that an architecture has, with their defaults."""
    parameters = inspect.signature(architecture).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_settings(
    name: str, architecture: Callable[..., Any], given: Mapping[str, Any]
) -> dict[str, Setting]:
    """Checks names and values of settings.

    Raises:
        UsageError: A setting is unknown, of the wrong kind, or below its least value.
    """
    defaults = settings_of(architecture)
    checked: dict[str, Setting] = {}
    for key, value in given.items():
        if key not in defaults:
            raise UsageError(f"{name} has no setting {key!r}", f"Settings: {', '.join(defaults)}.")
        checked[key] = _checked(f"{name}: {key}", defaults[key], value)
    return checked


def parse_setting(default: Setting, text: str) -> Setting | str:
    """Reads a setting as a user types it (`64`, `0.5`, `true`, `2,2,4,2`).

    What can't be read is returned as it is; `check_settings` tells the user.
    """
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.lower()]
        if isinstance(default, tuple):
            return tuple(int(part) for part in text.split(","))
        return type(default)(text)
    except (KeyError, ValueError):
        return text


def require_multiple(name: str, value: int, of_name: str, of: int) -> None:
    """Refuses a setting that another one doesn't divide."""
    if value % of:
        raise UsageError(
            f"{name}={value} is not a multiple of {of_name}={of}", f"Choose {name} or {of_name} so."
        )


def _checked(what: str, default: Setting, value: Any) -> Setting:
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise UsageError(f"{what} is {value!r}", "It is true or false.")
    if isinstance(default, tuple):
        if isinstance(value, (tuple, list)) and value and all(map(_is_count, value)):
            return tuple(value)
        raise UsageError(f"{what} is {value!r}", "It is a list of whole numbers from 1 on.")
    if isinstance(default, int):
        if _is_count(value):
            return int(value)
        raise UsageError(f"{what} is {value!r}", "It is a whole number from 1 on.")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise UsageError(f"{what} is {value!r}", "It is a number above 0.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
