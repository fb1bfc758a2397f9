"""How pybind11's classes and enums behave, as far as it differs from Python's own."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Any


class Enum(enum.IntEnum):
    """Compares as a number, and prints with its class."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


def make_enum(name: str, members: dict[str, int]) -> Any:
    """An enum whose members depend on the version."""
    return Enum(name, members)


class _ChecksInit(type):
    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        made = super().__call__(*arguments, **named)
        if not getattr(made, "is_initialized", False):
            base = next(each for each in cls.__mro__ if "is_base" in vars(each))
            raise TypeError(f"{base.__name__}.__init__() must be called when overriding __init__")
        return made


class Overridable(metaclass=_ChecksInit):
    """A class that C++ calls back: who inherits it has to call its `__init__`."""

    is_base = True

    def __init__(self) -> None:
        self.is_initialized = True


class Dims:
    """Sizes: a sequence, but no tuple."""

    __slots__ = ("_sizes",)

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = tuple(sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __getitem__(self, place: int) -> int:
        return self._sizes[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __repr__(self) -> str:
        return repr(self._sizes)


class HostMemory:
    """Bytes that the library has made."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def nbytes(self) -> int:
        """How many there are."""
        return len(self._content)

    def __bytes__(self) -> bytes:
        return self._content


NULL_POINTER = "pybind11::init(): factory function returned nullptr"
"""What the TypeError says if a constructor gets nothing from C++."""
