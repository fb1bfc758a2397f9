"""A mutable list view of a mapping's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, Generic, TypeVar, overload

Item = TypeVar("Item")


class KeyedList(MutableSequence[Item], Generic[Item]):
    """A list view of a mapping's values; every change is passed to the mapping's owner.

    Iteration goes over a snapshot taken at its start.

    Args:
        held: The mapping.
        assign: Replaces the owner's items with the given ones.
    """

    def __init__(self, held: Mapping[Any, Item], assign: Callable[[Iterable[Item]], None]) -> None:
        self._held = held
        self._assign = assign

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return list(self._held.values())[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        items = list(self)
        items[index] = value
        self._assign(items)

    def __delitem__(self, index: int | slice) -> None:
        items = list(self)
        del items[index]
        self._assign(items)

    def insert(self, index: int, value: Item) -> None:
        """Insert an item before another one."""
        items = list(self)
        items.insert(index, value)
        self._assign(items)

    def sort(self, *, key: Callable[[Item], Any], reverse: bool = False) -> None:
        """Reorder the items."""
        self._assign(sorted(self, key=key, reverse=reverse))

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))
