"""Records as JSON: one way to write them, and one way to read them without trusting any field."""

from __future__ import annotations

import functools
import math
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from qdqtune.records._untrusted_files import (
    LARGEST,
    list_in,
    number_in,
    object_in,
    switch_in,
    text_in,
    whole_in,
)

R = TypeVar("R", bound="Record")

UNBOUNDED = MappingProxyType({"unbounded": True})
"""Metadata of a number, or a pair of numbers, whose upper end may be infinite: None in JSON."""


_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)


class Record:
    """Base class of dataclasses that have a JSON form.

    Attributes:
        KIND: The kind of JSON object; empty for a part of another record.
        SCHEMA: Its version.
        JSON: The contents of the JSON form: names of attributes, or ``name=attribute`` where they
            differ; empty for the fields.
    """

    KIND: ClassVar[str] = ""
    SCHEMA: ClassVar[int] = 1
    JSON: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a number without bounds is None."""
        head = {"kind": self.KIND, "schema": self.SCHEMA} if self.KIND else {}
        return {
            **head,
            **{name: json_form(attrgetter(each)(self)) for name, each in self._attributes()},
        }

    @classmethod
    def from_dict(cls: type[R], value: object, name: str = "") -> R:
        """Read the JSON form, as written by this or an earlier version.

        Args:
            value: The JSON form.
            name: Its name in messages.

        Raises:
            KeyError: If a field is missing.
            TypeError: If there is an unknown field.
            ValueError: If a field has the wrong type, or is not a usable number.
        """
        body = object_in(value, name or "it")
        hints, known = _hints(cls), fields(cls)  # type: ignore[arg-type]
        names = {attribute: each for each, attribute in cls._attributes()}
        names |= {each.name: names.get(each.name, each.name) for each in known}
        unknown = body.keys() - {"kind", "schema", *names.values()}
        if unknown:
            raise TypeError(f"{name or 'it'} has an unknown field: {min(unknown)}")
        found = {}
        for each in known:
            key = names[each.name]
            if key in body:
                full = f"{name}.{key}" if name else key
                is_open = each.metadata == UNBOUNDED
                found[each.name] = _read(body[key], hints[each.name], full, is_open)
            elif each.default is MISSING and each.default_factory is MISSING:
                raise KeyError(key)
        record = cls(**found)
        record.check()
        return record

    def check(self) -> None:
        """Check the values that were read, beyond their types.

        Raises:
            ValueError: If a value is impossible.
        """

    @classmethod
    def _attributes(cls) -> Iterator[tuple[str, str]]:
        """Yield the names in the JSON form, each with the attribute that it holds."""
        for each in cls.JSON.split() or [field.name for field in fields(cls)]:  # type: ignore[arg-type]
            name, _, attribute = each.partition("=")
            yield name, attribute or name


def json_form(value: Any) -> Any:
    """Return a value as JSON: enums by value, paths as text, sets sorted, infinity as None."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: json_form(each) for key, each in value.items()}
    if is_dataclass(value):
        return {each.name: json_form(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Set):
        return sorted(value)
    if isinstance(value, Sequence):
        return [json_form(each) for each in value]
    return os.fspath(value)


def _read(value: Any, wanted: Any, name: str, is_open: bool = False) -> Any:
    origin, parts = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (types.UnionType, typing.Union):
        (wanted,) = [part for part in parts if part is not type(None)]
        return None if value is None else _read(value, wanted, name)
    if origin is tuple:
        values = list_in(list(value) if isinstance(value, tuple) else value, name)
        kinds = [parts[0]] * len(values) if parts[-1] is Ellipsis else list(parts)
        if len(kinds) != len(values):
            raise ValueError(f"{name} has {len(values)} parts, not {len(kinds)}")
        last = len(values) - 1
        return tuple(
            _read(each, kind, name, is_open and number == last)
            for number, (each, kind) in enumerate(zip(values, kinds, strict=True))
        )
    if origin is not None:  # a mapping
        return {
            text_in(key, name): _read(each, parts[1], f"{name}.{key}")
            for key, each in object_in(value, name).items()
        }
    if wanted is float:
        return math.inf if value is None and is_open else number_in(value, name, -LARGEST, LARGEST)
    if wanted in _SIMPLE:
        return _SIMPLE[wanted](value, name)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        return wanted(value)
    return value if wanted is Any else wanted.from_dict(value, name)


_SIMPLE: dict[type, Any] = {str: text_in, bool: switch_in, int: whole_in}
