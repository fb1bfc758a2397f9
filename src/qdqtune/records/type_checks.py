"""Checks that the fields of a record read from a file have their declared types."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

LARGEST = 1e300
"""The largest number accepted; larger ones would break arithmetic."""


def check_types(record: Any) -> None:
    """Check every field of a dataclass, and of dataclasses nested in it.

    Only intervals may be infinite, and no number may be too large for arithmetic.

    Args:
        record: The record.

    Raises:
        TypeError: If a field is not of its declared type.
        ValueError: If a number is NaN, infinite or too large.
    """
    hints = typing.get_type_hints(type(record))
    for each in fields(record):
        _check(getattr(record, each.name), hints[each.name], each.name)


def _check(value: Any, wanted: Any, name: str) -> None:
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if wanted is Any:
        return
    if origin in (types.UnionType, typing.Union):
        if value is not None or type(None) not in parts:
            (wanted,) = [part for part in parts if part is not type(None)]
            _check(value, wanted, name)
    elif origin is tuple:
        _check_type(value, tuple, name)
        kinds = [parts[0]] * len(value) if parts[-1] is Ellipsis else list(parts)
        if len(kinds) != len(value):
            raise TypeError(f"{name} has {len(value)} parts, not {len(kinds)}")
        for part, kind in zip(value, kinds, strict=True):
            _check(part, kind, name)
    elif origin is not None:  # a mapping
        _check_type(value, Mapping, name)
        for key, part in value.items():
            _check(key, parts[0], name)
            _check(part, parts[1], name)
    elif is_dataclass(wanted):
        _check_type(value, wanted, name)
        check_types(value)
    elif wanted in (int, float):
        _check_number(value, wanted, name)
    else:
        _check_type(value, wanted, name)


def _check_type(value: Any, wanted: Any, name: str) -> None:
    if not isinstance(value, wanted):
        raise TypeError(f"{name} is {type(value).__name__}, not {wanted.__name__}")


def _check_number(value: Any, wanted: type, name: str) -> None:
    kinds = int if wanted is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise TypeError(f"{name} is {type(value).__name__}, not {wanted.__name__}")
    is_end = name.endswith("interval") and value == math.inf
    if not (-LARGEST <= value <= LARGEST or is_end):
        raise ValueError(f"{name} is not a number that can be computed with")
